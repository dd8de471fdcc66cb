#pragma once

#include <array>

namespace lockstep {

/// Parameter groups, which may have learning rates and weight decays of their own.
inline constexpr int kWeightGroup = 0;  ///< decayed: weights
inline constexpr int kOtherGroup = 1;   ///< biases, normalisation
inline constexpr int kNumParamGroups = 2;
/// By group, for people and metrics.
inline constexpr std::array<const char*, kNumParamGroups> kParamGroupNames{"weights", "other"};

}  // namespace lockstep
