#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/callback_graph.h"

namespace lockstep::coord {

/// Callbacks in the order of what they pass to each other: those that generate a key come before
/// those that read it, equals in the order of their names, the same on every rank.
///
/// Throws Error(kConfig) before the run: a cycle, a key that nobody makes, a key made twice, a
/// callback of all ranks that reads what rank 0 alone has (each with the chain of callbacks);
/// Error(kBadData) in it: what a callback read or returned is not what it declared (iteration,
/// callback, key). What a callback throws by itself gets its name and the iteration, with the code
/// of its Error, else kBug.
class CallbacksHandler {
 public:
  /// `source_keys`: what the driver itself gives to each iteration; `_x` where that may lack it.
  CallbacksHandler(std::vector<NamedCallback> callbacks,
                   const std::vector<std::string>& source_keys, CallbackContext context);

  CallbacksHandler(const CallbacksHandler&) = delete;  // callbacks hold its context
  CallbacksHandler& operator=(const CallbacksHandler&) = delete;

  /// The driver changes it between the calls.
  CallbackContext& context() { return context_; }
  std::vector<std::string> order() const;
  /// What callbacks read that run on this rank, optional keys included; sorted.
  std::vector<std::string> keys_read_here() const;

  void begin();
  void on_iteration_start();
  /// `data` holds the source keys. Each callback gets what it declared and nothing else. Returns
  /// all that was made, the sources included. Behind the last iteration of an epoch of training
  /// on_epoch_end() of all callbacks follows, in their order.
  DataMap on_iteration_end(const DataMap& data);
  /// Calls end() of every callback whose begin() returned, then throws what the first of them
  /// threw.
  void end(bool is_broken_off = false);
  /// The same where the run ends with an error, so that what callbacks hold is stored all the same.
  /// That error is the one to tell: what end() throws is only logged.
  void end_after_fault() noexcept;

 private:
  void update_contexts();
  bool epoch_ends() const;
  void end_epoch();
  bool runs_here(const CallbackNode& node) const;
  std::optional<DataMap> run(CallbackNode& node, const DataMap& data);

  CallbackContext context_;
  CallbackContext own_context_;  // of callbacks that run on all ranks: with a folder of this rank's
  std::vector<CallbackNode> nodes_;  // in their order
  size_t num_begun_ = 0;
};

}  // namespace lockstep::coord
