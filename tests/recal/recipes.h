#pragma once

#include <string>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "base/tensors/params.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/timeline.h"

namespace lockstep::recal {

/// A recipe of these items, each a line such as `!ConstantKSModifier {params: __ALL__}`.
inline std::string recipe_of(const std::vector<std::string>& items) {
  std::string text = "version: 1.0.0\nmodifiers:\n";
  for (const std::string& item : items) text += "  - " + item + "\n";
  return text;
}

/// The only recipe of a text that must have no fault.
inline Recipe good_recipe(const std::string& text) {
  Diagnostics faults;
  Recipe recipe = parse_recipe("r.yaml", text, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return recipe;
}

/// `line:col: message` of each fault, one a line.
inline std::string brief(const Diagnostics& faults) {
  std::string out;
  for (const Fault& fault : faults.list()) {
    out += out.empty() ? "" : "\n";
    out += std::to_string(fault.line) + ":" + std::to_string(fault.column) + ": " + fault.message;
  }
  return out;
}

inline std::string faults_of(const std::string& text) {
  Diagnostics faults;
  parse_recipe("r.yaml", text, &faults);
  return brief(faults);
}

/// End of the refusal of an unknown tag: the known tags and their other names.
inline std::string known_tags() {
  std::string tags;
  for (const std::string& name : modifier_kinds().names())
    tags += (tags.empty() ? "!" : ", !") + name;
  return tags +
         "; other names: !GMPruningModifier (= !GradualKSModifier), !MagnitudePruningModifier (= "
         "!GradualKSModifier), !GlobalMagnitudePruningModifier (= !GradualKSModifier with "
         "global_sparsity: true), !ConstantPruningModifier (= !ConstantKSModifier), "
         "!LegacyQuantizationModifier (= !QuantizationModifier), !OutputDistillationModifier (= "
         "!DistillationModifier)";
}

/// A small network: two convolutions and a linear layer, with biases.
inline std::vector<ParamInfo> small_network() {
  return {{"blocks.0.conv.weight", true, 72},  {"blocks.0.conv.bias", false, 8},
          {"blocks.1.conv.weight", true, 144}, {"blocks.1.conv.bias", false, 16},
          {"head.weight", true, 40},           {"head.bias", false, 10}};
}

inline Timeline compiled(const std::string& text, int64_t steps_per_epoch,
                         double base_learning_rate = 0.1) {
  Diagnostics faults;
  const Recipe recipe = good_recipe(text);
  Timeline timeline = Timeline::compile(recipe,
                                        {.steps_per_epoch = steps_per_epoch,
                                         .base_learning_rate = base_learning_rate,
                                         .params = small_network()},
                                        &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return timeline;
}

inline std::string compile_faults(const std::vector<std::string>& items,
                                  int64_t steps_per_epoch = 10) {
  Diagnostics faults;
  Timeline::compile(
      good_recipe(recipe_of(items)),
      {.steps_per_epoch = steps_per_epoch, .base_learning_rate = 0.1, .params = small_network()},
      &faults);
  return brief(faults);
}

inline std::vector<int64_t> steps_of(const Timeline& timeline, ActionKind kind) {
  std::vector<int64_t> steps;
  for (const Action& action : timeline.actions())
    if (action.kind == kind) steps.push_back(action.step);
  return steps;
}

}  // namespace lockstep::recal
