#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "coord/callback.h"

namespace lockstep::coord {

struct NamedCallback {
  std::string name;  ///< for messages and the order of equals; no other has it
  std::unique_ptr<Callback> callback;
};

/// A key as a callback declares it: `_mask` is "mask", optional.
struct CallbackKey {
  std::string name;
  bool is_optional = false;
};
CallbackKey callback_key(const std::string& declared);

/// A callback among those whose keys it reads.
struct CallbackNode {
  std::string name;
  std::unique_ptr<Callback> callback;
  RunOn run_on = RunOn::kRank0;
  std::vector<CallbackKey> incoming, generated;
  std::vector<size_t> producers;  ///< nodes that generate what it reads, by place in the order
  bool is_halted = false;         ///< in this iteration
};

/// The callbacks in an order in which each comes behind its producers, of several that may be next
/// the first by name (Kahn's algorithm). Throws Error(kConfig) as CallbacksHandler says.
///
/// Source: A. B. Kahn, Topological sorting of large networks, CACM 5 (1962).
std::vector<CallbackNode> sorted_callbacks(std::vector<NamedCallback> callbacks,
                                           const std::vector<std::string>& source_keys);

}  // namespace lockstep::coord
