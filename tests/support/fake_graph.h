#pragma once

#include <functional>

#include "base/error.h"
#include "base/tensors/device_backend.h"

namespace lockstep::tests {

/// A graph of a device whose kernels run when they are launched: what it does again is the body.
class FakeGraph final : public DeviceGraph {
 public:
  explicit FakeGraph(bool refuses = false) : refuses_(refuses) {}

  void capture(const std::function<void()>& body) override {
    ++num_records;
    body_ = nullptr;
    body();
    if (refuses_)
      throw Error(ExitCode::kUnavailable, "dist.nccl", "cudaStreamEndCapture: not permitted");
    body_ = body;
  }
  void replay() override {
    check(body_ != nullptr, "replay() without capture()");
    ++num_replays;
    body_();
  }

  void forget() override { body_ = nullptr; }

  int num_records = 0, num_replays = 0;

 private:
  const bool refuses_;
  std::function<void()> body_;
};

}  // namespace lockstep::tests
