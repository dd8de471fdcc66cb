#pragma once

#include <array>
#include <string_view>

namespace lockstep {

/// Parameter groups, which may have their own learning rates and weight decays.
inline constexpr int kWeightGroup = 0;  ///< with weight decay: weights
inline constexpr int kOtherGroup = 1;   ///< biases, normalisation
inline constexpr int kNumParamGroups = 2;
/// Names by group, for people and metrics.
inline constexpr std::array<const char*, kNumParamGroups> kParamGroupNames{"weights", "other"};

/// Text about a parameter that is not in the table.
inline constexpr std::string_view kFrozenInConstructor =
    "frozen in the network's constructor (requires_grad=False)";

}  // namespace lockstep
