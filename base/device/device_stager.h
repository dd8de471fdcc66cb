#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep {

/// A tensor of a device that is to be copied, or some of its elements (row-major order; the others
/// are anything in the copy).
struct StagedPart {
  at::Tensor tensor;
  std::optional<std::vector<ElementRange>> held = std::nullopt;
};

/// Tensors of a device on their way to host memory.
class StagedCopy {
 public:
  virtual ~StagedCopy() = default;

  /// In the host's memory, in the order of the parts. There once wait_on_host() has returned; they
  /// last until the stager's next begin().
  virtual const std::vector<at::Tensor>& copies() const = 0;
  /// Later kernels of the calling thread's stream start when the originals have been read: then
  /// they may change. The host runs on.
  virtual void hold_caller() = 0;
  /// Returns once the copies are there; from any thread. Throws Error(kUnavailable) if the device
  /// failed, and the error of the communicator that the stager is of, so that copies of what an
  /// aborted collective has left are never taken for good.
  virtual void wait_on_host() = 0;
};

/// Copies tensors of a device into pinned host memory, on a stream beside the one that computes
/// (Communicator::make_stager()). The memory is kept from one copy to the next. One caller at a
/// time.
class DeviceStager {
 public:
  virtual ~DeviceStager() = default;

  virtual at::Device device() const = 0;
  /// Takes the memory that a copy of so many bytes needs, which may take seconds. Throws
  /// Error(kUnavailable) if there is none.
  virtual void prepare(int64_t num_bytes) = 0;
  /// Begins to copy what the parts hold when the calling thread's stream has done all it has now;
  /// the host runs on. Throws as prepare(), and the communicator's error if it has failed.
  virtual std::unique_ptr<StagedCopy> begin(const std::vector<StagedPart>& parts) = 0;

  /// Memory for copies of these parts.
  static int64_t bytes_of(const std::vector<StagedPart>& parts) {
    int64_t num_bytes = 0;
    for (const StagedPart& part : parts) num_bytes += padded_bytes(part.tensor);
    return num_bytes;
  }

 protected:
  /// Of one copy, so that the next begins at a cache line.
  static int64_t padded_bytes(const at::Tensor& tensor) {
    return (static_cast<int64_t>(tensor.nbytes()) + 63) / 64 * 64;
  }
};

}  // namespace lockstep
