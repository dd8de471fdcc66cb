#pragma once

namespace lockstep {

/// Parameter groups, which may have learning rates and weight decays of their own.
inline constexpr int kWeightGroup = 0;  ///< decayed: weights
inline constexpr int kOtherGroup = 1;   ///< biases, normalisation
inline constexpr int kNumParamGroups = 2;

}  // namespace lockstep
