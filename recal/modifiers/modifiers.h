#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/yaml/config_reader.h"
#include "recal/timeline/modifier.h"

/// Readers of the modifiers, one per kind, for the table of modifiers (modifier_table.h). Each
/// reads the keys of one entry of a recipe; `location` is the entry's place. Faults go to the
/// reader's diagnostics.
namespace lockstep::recal {

/// Modifiers made from one entry: usually one, several if the entry has a target for each of
/// several parameter sets.
using Modifiers = std::vector<std::unique_ptr<Modifier>>;

/// Returns a list with one modifier of type T.
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
