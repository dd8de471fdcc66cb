#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"

/// Readers of the modifiers, one a kind, for the table of modifiers (modifier_table.h). Each reads
/// the keys of one entry of a recipe; `location` is where the entry stands. Faults go to the
/// fields'.
namespace lockstep::recal {

/// What one entry becomes: usually one modifier, several where it names a target for each of
/// several sets of parameters.
using Modifiers = std::vector<std::unique_ptr<Modifier>>;

/// A modifier of type T alone.
template <typename T, typename Options>
Modifiers one_modifier(Options options, const YamlFields& in, const SourceLocation& location) {
  Modifiers one;
  one.push_back(std::make_unique<T>(std::move(options), in.path(), location));
  return one;
}

Modifiers read_constant_ks(YamlFields* in, const SourceLocation& location);
Modifiers read_epoch_range(YamlFields* in, const SourceLocation& location);
Modifiers read_gradual_ks(YamlFields* in, const SourceLocation& location);
Modifiers read_gradual_param(YamlFields* in, const SourceLocation& location);
Modifiers read_learning_rate(YamlFields* in, const SourceLocation& location);
Modifiers read_learning_rate_function(YamlFields* in, const SourceLocation& location);
Modifiers read_quantization(YamlFields* in, const SourceLocation& location);
Modifiers read_set_learning_rate(YamlFields* in, const SourceLocation& location);
Modifiers read_set_param(YamlFields* in, const SourceLocation& location);
Modifiers read_set_weight_decay(YamlFields* in, const SourceLocation& location);
Modifiers read_trainable_params(YamlFields* in, const SourceLocation& location);

}  // namespace lockstep::recal
