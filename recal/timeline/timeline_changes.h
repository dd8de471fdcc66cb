#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::recal {

/// How the schedule of a save differs from today's, for people, line by line; empty if they do not.
/// Both texts are Timeline::canonical_text(). `step`: where the save was made; what lies before it
/// is marked as past: masks and values stay as the save's schedule made them, while rates, decays,
/// trainability and quantization follow today's, as they are looked up by step. After
/// kMaxChangeLines entries their number is given instead.
///
///   "steps per epoch: 23 in the save, 46 now"
///   "step 345 (past): prune of classifier.weight: 0.9 in the save, 0.8 now"
///   "step 400: learning_rate of all groups: 0.03 only now"
std::vector<std::string> timeline_changes(const std::string& saved_canonical,
                                          const std::string& now_canonical, int64_t step);

inline constexpr size_t kMaxChangeLines = 20;

}  // namespace lockstep::recal
