#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

/// Elements begin_E to end_E (not included) of one flat buffer, such as the part of it that one
/// rank updates.
struct ParamShard {
  size_t buffer = 0;
  int64_t begin_E = 0, end_E = 0;

  int64_t num_elements() const { return end_E - begin_E; }
  friend bool operator==(const ParamShard&, const ParamShard&) = default;
};

/// Regions whose mean gradients are still on their way, in the order in which they come.
struct LateShards {
  std::vector<ParamShard> regions;
  std::function<void()> wait_for_next;  ///< once for each region: its gradients are there then
};

}  // namespace lockstep
