#pragma once

#include <map>
#include <memory>
#include <string>

#include <ATen/record_function.h>

namespace lockstep::tests {

/// ATen's operations that this thread calls while it lives. One at a time a thread.
class CountedCalls {
 public:
  CountedCalls() {
    current() = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedCalls() { at::removeCallback(handle_); }
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;

  /// Number of calls that no other operation makes.
  int outer() const { return outer_; }
  /// aten::mm, wherever it is called from.
  int of(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? 0 : found->second;
  }

 private:
  static CountedCalls*& current() {
    thread_local CountedCalls* calls = nullptr;
    return calls;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (current()->depth_++ == 0) ++current()->outer_;
    ++current()->by_name_[call.name()];
    return nullptr;
  }
  static void end(const at::RecordFunction& /*call*/, at::ObserverContext* /*context*/) {
    --current()->depth_;
  }

  std::map<std::string, int> by_name_;
  int outer_ = 0, depth_ = 0;
  at::CallbackHandle handle_ = 0;
};

}  // namespace lockstep::tests
