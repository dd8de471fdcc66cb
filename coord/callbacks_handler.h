#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coord/callback.h"

/// Order of callbacks by the data that they exchange, and their calls in each iteration.
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

/// Callbacks in the order of their data. Producers of a key come before its readers. Independent
/// ones are in the order of their names. The order is the same on every rank.
///
/// Throws Error(kConfig) before the run for a cycle, and for a key with no producer or two. Throws
/// it too for a callback of all ranks that reads a key of rank 0 only. The message has the chain of
/// callbacks.
///
/// Throws Error(kBadData) during the run if a callback read or returned other keys than it declared
/// (with iteration, callback, key). Any other exception of a callback gets its name and the
/// iteration, with the code of its Error, else kBug.
class CallbacksHandler {
 public:
  /// `source_keys`: keys that the driver adds to each iteration; `_x` if that may be missing.
  CallbacksHandler(std::vector<NamedCallback> callbacks,
                   const std::vector<std::string>& source_keys, CallbackContext context);

  CallbacksHandler(const CallbacksHandler&) = delete;  // callbacks hold a pointer to its context
  CallbacksHandler& operator=(const CallbacksHandler&) = delete;

  /// Returns the context; the driver changes it between calls.
  CallbackContext& context() { return context_; }
  std::vector<std::string> order() const;
  /// Returns the keys, optional ones included, that callbacks on this rank read; sorted.
  std::vector<std::string> keys_read_here() const;

  void begin();
  void on_iteration_start();
  /// Runs the callbacks. `data` has the source keys. Each callback gets only the keys that it
  /// declared. Returns all values including the sources. After the last iteration of a training
  /// epoch on_epoch_end() of all callbacks follows in their order.
  DataMap on_iteration_end(const DataMap& data);
  /// Calls end() of every callback whose begin() returned, then throws the first exception of these
  /// calls.
  void end(bool is_broken_off = false);
  /// Calls end() after an error of the run, so that the callbacks still store their data. The run's
  /// error is the one to report; exceptions of end() are only logged.
  void end_after_fault() noexcept;

 private:
  void update_contexts();
  bool epoch_ends() const;
  void end_epoch();
  bool runs_here(const CallbackNode& node) const;
  std::optional<DataMap> run(CallbackNode& node, const DataMap& data);

  CallbackContext context_;
  CallbackContext own_context_;      // of callbacks on all ranks: with this rank's folder
  std::vector<CallbackNode> nodes_;  // in their order
  size_t num_begun_ = 0;
};

}  // namespace lockstep::coord
