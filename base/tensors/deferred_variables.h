#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Called with each tensor that comes into being, after its initial value is written and before
/// anything computes with it. It may write another value into it; what it throws reaches whoever
/// caused the creation.
using TensorWatcher = std::function<void(const std::string& name, const at::Tensor& tensor)>;

/// The part of an object that makes tensors later than itself: a layer that takes its shape from
/// its first input, an optimizer that makes its slots at its first step. Whoever waits for such
/// tensors, as a delayed restore does (checkpoint/objects/checkpoint.h), watches it. One thread at
/// a time.
class DeferredVariables {
 public:
  DeferredVariables() = default;
  virtual ~DeferredVariables() = default;
  DeferredVariables(const DeferredVariables&) =
      delete;  // those who watch one do not watch its copies
  DeferredVariables& operator=(const DeferredVariables&) = delete;

  /// The watcher is called as long as the handle lives; the handle may outlive this object.
  [[nodiscard]] std::shared_ptr<void> watch(TensorWatcher watcher);

  /// Names of tensors that are still to come, so far as they are known; relative to this object.
  virtual std::vector<std::string> names_to_come() const = 0;

 protected:
  /// To be called for each new tensor, with its name relative to this object.
  void announce(const std::string& name, const at::Tensor& tensor);

 private:
  std::vector<std::weak_ptr<TensorWatcher>> watchers_;
};

}  // namespace lockstep
