#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

/// Elements [begin_E, end_E) of one flat buffer, such as the shard that one rank updates.
struct ParamShard {
  size_t buffer = 0;
  int64_t begin_E = 0, end_E = 0;

  int64_t num_elements() const { return end_E - begin_E; }
  friend bool operator==(const ParamShard&, const ParamShard&) = default;
};

/// Regions whose mean gradients are still being reduced, in the order of their arrival.
struct LateShards {
  std::vector<ParamShard> regions;
  std::function<void()> wait_for_next;  ///< once per region: returns when its gradients are there
};

}  // namespace lockstep
