#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "coord/callback.h"

namespace lockstep::coord {

struct NamedCallback {
  std::string name;  ///< unique; for messages, and the order of independent callbacks
  std::unique_ptr<Callback> callback;
};

/// Key as a callback declares it: `_mask` is "mask", optional.
struct CallbackKey {
  std::string name;
  bool is_optional = false;
};
CallbackKey callback_key(const std::string& declared);

/// Node of the callback graph: a callback with its producers.
struct CallbackNode {
  std::string name;
  std::unique_ptr<Callback> callback;
  RunOn run_on = RunOn::kRank0;
  std::vector<CallbackKey> incoming, generated;
  std::vector<size_t> producers;  ///< nodes that generate keys it reads, by position in the order
  bool is_halted = false;         ///< in this iteration
};

/// Sorts the callbacks so that each comes after its producers. Of several possible next ones the
/// first by name comes next (Kahn's algorithm). Throws Error(kConfig) as described at
/// CallbacksHandler.
///
/// Source: A. B. Kahn, Topological sorting of large networks, CACM 5 (1962).
std::vector<CallbackNode> sorted_callbacks(std::vector<NamedCallback> callbacks,
                                           const std::vector<std::string>& source_keys);

}  // namespace lockstep::coord
