#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/yaml/config_reader.h"
#include "recal/timeline/modifier.h"

/// Readers of the modifiers, one a kind, for the table of modifiers (modifier_table.h). Each reads
/// the keys of one entry of a recipe; `location` is where the entry stands. Diagnostics go to the
/// fields'.
namespace lockstep::recal {

/// What one entry becomes: usually one modifier, several where it names a target for each of
/// several sets of parameters.
using Modifiers = std::vector<std::unique_ptr<Modifier>>;

/// A modifier of type T alone.
template <typename T, typename Options>
Modifiers one_modifier(Options options, const ConfigReader& in, const SourceLocation& location) {
  Modifiers one;
  one.push_back(std::make_unique<T>(std::move(options), in.path(), location));
  return one;
}

Modifiers read_constant_ks(ConfigReader* in, const SourceLocation& location);
Modifiers read_epoch_range(ConfigReader* in, const SourceLocation& location);
Modifiers read_gradual_ks(ConfigReader* in, const SourceLocation& location);
Modifiers read_gradual_param(ConfigReader* in, const SourceLocation& location);
Modifiers read_learning_rate(ConfigReader* in, const SourceLocation& location);
Modifiers read_learning_rate_function(ConfigReader* in, const SourceLocation& location);
Modifiers read_quantization(ConfigReader* in, const SourceLocation& location);
Modifiers read_set_learning_rate(ConfigReader* in, const SourceLocation& location);
Modifiers read_set_param(ConfigReader* in, const SourceLocation& location);
Modifiers read_set_weight_decay(ConfigReader* in, const SourceLocation& location);
Modifiers read_trainable_params(ConfigReader* in, const SourceLocation& location);

}  // namespace lockstep::recal
