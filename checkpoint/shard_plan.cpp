#include "checkpoint/shard_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "base/error.h"

namespace lockstep::checkpoint {

std::vector<int> plan_shards(const std::vector<PlannedPiece>& pieces, int world_size) {
  check(world_size >= 1, "a plan needs a rank");
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (pieces[a].num_bytes != pieces[b].num_bytes)
      return pieces[a].num_bytes > pieces[b].num_bytes;
    return pieces[a].name < pieces[b].name;
  });
  using Load = std::pair<int64_t, int>;  // bytes, rank: the smallest is the next to get work
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int rank = 0; rank < world_size; ++rank) loads.emplace(0, rank);
  std::vector<int> owners(pieces.size());
  for (const size_t piece : order) {
    const auto [num_bytes, rank] = loads.top();
    loads.pop();
    owners[piece] = rank;
    loads.emplace(num_bytes + pieces[piece].num_bytes, rank);
  }
  return owners;
}

}  // namespace lockstep::checkpoint
