#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Watcher that is called with each new tensor, after its initial value is written and before
/// anything computes with it. It may write another value. What it throws reaches the caller that
/// caused the creation.
using TensorWatcher = std::function<void(const std::string& name, const at::Tensor& tensor)>;

/// Part of an object that creates tensors later than itself. Examples: a layer takes its shape from
/// its first input, an optimizer creates its slots at its first step. Code that waits for such
/// tensors watches it, as a delayed restore does (checkpoint/objects/checkpoint.h). One thread at a
/// time.
class DeferredVariables {
 public:
  DeferredVariables() = default;
  virtual ~DeferredVariables() = default;
  DeferredVariables(const DeferredVariables&) = delete;  // watchers of one do not watch its copies
  DeferredVariables& operator=(const DeferredVariables&) = delete;

  /// Adds a watcher, which is called as long as the handle lives. The handle may outlive this
  /// object.
  [[nodiscard]] std::shared_ptr<void> watch(TensorWatcher watcher);

  /// Returns the known names of tensors still to come, relative to this object.
  virtual std::vector<std::string> names_to_come() const = 0;

 protected:
  /// Calls the watchers. Call it for each new tensor with its name relative to this object.
  void announce(const std::string& name, const at::Tensor& tensor);

 private:
  std::vector<std::weak_ptr<TensorWatcher>> watchers_;
};

}  // namespace lockstep
