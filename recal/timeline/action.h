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
  kSetLearningRate,  ///< value: the group's rate from this step on; a span's first one
  kSetWeightDecay,   ///< value: the group's decay from this step on
  kPrune,            ///< value: sparsity of each parameter of the set from this step on
  kKeepZeros,        ///< masks of the set are taken from the weights' zeros
  kRelease,          ///< masks of the set are no longer enforced
  kSetTrainable,     ///< value 1: the set is trained from this step on; 0: it is not
  kSetParam,         ///< value: of every element of the set, once, before this step
  kTransform,        ///< each parameter of the set goes through a function, once, before this step
  kQuantize,         ///< the layers with these weights are fake-quantized from this step on
  kFreezeObservers,  ///< quantization ranges stay as they are
  kFreezeBatchNorm,  ///< running statistics of batch normalisation stay as they are
};

/// What the rest of the recipe must know of a kind; one row of a table.
struct ActionTraits {
  ActionKind kind;
  std::string_view name;  ///< in the canonical text: never changed
  /// Actions of one step act in this order: values before the masks that are computed from them, a
  /// release before the mask that takes over.
  int order = 0;
  bool is_on_masks = false;
  bool is_on_values = false;
  bool is_on_quantization = false;
};
const ActionTraits& traits_of(ActionKind kind);

/// What happens before the forward pass of `step` (0-based; the first training step is step 0).
struct Action {
  int64_t step = 0;
  ActionKind kind = ActionKind::kSetLearningRate;
  double value = 0;
  int modifier = 0;        ///< index in Timeline::modifiers()
  int param_set = -1;      ///< index in Timeline::param_sets(); -1: none
  int group = kAllGroups;  ///< rates and decays: kWeightGroup, kOtherGroup
                           ///< (base/tensors/params.h) or all; without a model also groups that
                           ///< no run has
  int formula = -1;        ///< index in Timeline::rate_formulas(): the rate then follows it at
                           ///< every step, from `value` on; -1: `value` holds
  int transform = -1;      ///< kTransform: index in Timeline::transforms()
};

/// A change of parameter values that a modifier brings along, for effects that no kind of action
/// has.
struct ParamTransform {
  std::string name;  ///< with its numbers: runs of different names have different timelines
  /// Writes new values of one parameter, in place. Must give the same bits on every rank.
  std::function<void(at::Tensor& values, int64_t step)> apply;
};

}  // namespace lockstep::recal
