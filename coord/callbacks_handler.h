#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coord/callback.h"

namespace lockstep::coord {

struct NamedCallback {
  std::string name;  ///< for messages and the order of equals; no other has it
  std::unique_ptr<Callback> callback;
};

/// Callbacks in the order of what they pass to each other: those that generate a key come before
/// those that read it, equals in the order of their names, the same on every rank.
///
/// Throws Error(kConfig) before the run: a cycle, a key that nobody makes, a key made twice (each
/// with the chain of callbacks); Error(kBadData) in it: what a callback returned is not what it
/// declared (iteration, callback, key).
class CallbacksHandler {
 public:
  /// `source_keys`: what the driver itself gives to each iteration.
  CallbacksHandler(std::vector<NamedCallback> callbacks,
                   const std::vector<std::string>& source_keys, CallbackContext context);

  /// The driver changes it between the calls.
  CallbackContext& context() { return context_; }
  std::vector<std::string> order() const;

  void begin();
  void on_iteration_start();
  /// `data` holds the source keys. Each callback gets what it declared and nothing else. Returns
  /// all that was made, the sources included.
  DataMap on_iteration_end(const DataMap& data);
  /// Calls end() of every callback, then throws what the first of them threw.
  void end();

 private:
  struct Node;
  CallbackContext context_;
  std::vector<Node> nodes_;
};

}  // namespace lockstep::coord
