#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::recal {

/// Describes how a checkpoint's schedule differs from the current one, line by line; empty if
/// equal. Both texts are Timeline::canonical_text(). step: the checkpoint's step. Earlier entries
/// are marked as past. Past masks and values stay as the checkpoint's schedule made them. Rates,
/// decays, trainability and quantization follow the current schedule, since they are looked up by
/// step. After kMaxChangeLines entries only the number of further ones is given.
///
///   "steps per epoch: 23 in the save, 46 now"
///   "step 345 (past): prune of classifier.weight: 0.9 in the save, 0.8 now"
///   "step 400: learning_rate of all groups: 0.03 only now"
std::vector<std::string> timeline_changes(const std::string& saved_canonical,
                                          const std::string& now_canonical, int64_t step);

inline constexpr size_t kMaxChangeLines = 20;

}  // namespace lockstep::recal
