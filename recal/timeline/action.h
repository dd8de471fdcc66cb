#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "recal/params/param_groups.h"

namespace at {
class Tensor;
}

namespace lockstep::recal {

enum class ActionKind {
  kSetLearningRate,  ///< value: the group's rate from this step on; for a formula its first one
  kSetWeightDecay,   ///< value: the group's decay from this step on
  kPrune,            ///< value: sparsity of each parameter of the set from this step on
  kKeepZeros,        ///< masks of the set are made from the weights' zeros
  kRelease,          ///< masks of the set are no longer enforced
  kSetTrainable,     ///< value 1: the set is trained from this step on; 0: it is not
  kSetParam,         ///< value: new value of every element of the set, once, before this step
  kTransform,        ///< applies a function to each parameter of the set, once, before this step
  kQuantize,         ///< the layers with these weights are fake-quantized from this step on
  kFreezeObservers,  ///< ranges of quantization no longer change
  kFreezeBatchNorm,  ///< running statistics of batch normalisation no longer change
};

/// Properties of a kind of action: one row of a table.
struct ActionTraits {
  ActionKind kind;
  std::string_view name;  ///< in the canonical text: must not change
  /// Order of actions within a step. Values come before the masks computed from them, and a release
  /// comes before a mask that replaces it.
  int order = 0;
  bool is_on_masks = false;
  bool is_on_values = false;
  bool is_on_quantization = false;
};
const ActionTraits& traits_of(ActionKind kind);

/// Change that happens before the forward pass of `step` (the first training step is step 0).
struct Action {
  int64_t step = 0;
  ActionKind kind = ActionKind::kSetLearningRate;
  double value = 0;
  int modifier = 0;        ///< index in Timeline::modifiers()
  int param_set = -1;      ///< index in Timeline::param_sets(); -1: none
  int group = kAllGroups;  ///< rates and decays: kWeightGroup, kOtherGroup
                           ///< (base/tensors/param_group.h) or all; without a model also groups
                           ///< that do not exist in a run
  int formula = -1;        ///< index in Timeline::rate_formulas(): the rate follows it at every
                           ///< step and starts with `value`; -1: `value` holds
  int transform = -1;      ///< kTransform: index in Timeline::transforms()
};

/// User-defined change of parameter values, for modifiers whose effect no other kind of action has.
struct ParamTransform {
  std::string name;  ///< includes its numbers: different names make different timelines
  /// Writes new values of one parameter, in place. Must give the same bits on every rank.
  std::function<void(at::Tensor& values, int64_t step)> apply;
};

}  // namespace lockstep::recal
