#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

/// What the plan needs to know of a piece of a save. Texts count 0 bytes, so that the plan never
/// depends on values.
struct PlannedPiece {
  std::string name;
  int64_t num_bytes = 0;
};

/// Which rank writes each piece: the largest first, each to the rank with the fewest bytes so far;
/// ties go to the lower name and the lower rank. Pure arithmetic, so every rank finds the same plan
/// without a message. world_size >= 1.
std::vector<int> plan_shards(const std::vector<PlannedPiece>& pieces, int world_size);

}  // namespace lockstep::checkpoint
