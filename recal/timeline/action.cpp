#include "recal/timeline/action.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace lockstep::recal {
namespace {

constexpr std::array kTraits = {
    ActionTraits{.kind = ActionKind::kSetLearningRate, .name = "learning_rate", .order = 0},
    ActionTraits{.kind = ActionKind::kSetWeightDecay, .name = "weight_decay", .order = 1},
    ActionTraits{
        .kind = ActionKind::kSetParam, .name = "set_param", .order = 2, .is_on_values = true},
    ActionTraits{
        .kind = ActionKind::kTransform, .name = "transform", .order = 3, .is_on_values = true},
    ActionTraits{.kind = ActionKind::kPrune, .name = "prune", .order = 4, .is_on_masks = true},
    // Same order as prune: Timeline::file_actions() orders the two by modifier.
    ActionTraits{.kind = ActionKind::kRelease, .name = "release", .order = 4, .is_on_masks = true},
    ActionTraits{
        .kind = ActionKind::kKeepZeros, .name = "keep_zeros", .order = 5, .is_on_masks = true},
    ActionTraits{.kind = ActionKind::kSetTrainable, .name = "trainable", .order = 6},
    ActionTraits{
        .kind = ActionKind::kQuantize, .name = "quantize", .order = 7, .is_on_quantization = true},
    ActionTraits{.kind = ActionKind::kFreezeObservers,
                 .name = "freeze_observers",
                 .order = 8,
                 .is_on_quantization = true},
    ActionTraits{.kind = ActionKind::kFreezeBatchNorm,
                 .name = "freeze_batch_norm",
                 .order = 9,
                 .is_on_quantization = true},
};

}  // namespace

const ActionTraits& traits_of(ActionKind kind) {
  const auto row = std::find_if(kTraits.begin(), kTraits.end(),
                                [&](const ActionTraits& one) { return one.kind == kind; });
  check(row != kTraits.end(), "every kind of action has a row");
  return *row;
}

}  // namespace lockstep::recal
