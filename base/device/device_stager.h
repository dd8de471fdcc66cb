#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

namespace lockstep {

/// Tensor of a device to copy, or some of its elements (row-major order). The others are undefined
/// in the copy.
struct StagedPart {
  at::Tensor tensor;
  std::optional<std::vector<ElementRange>> held = std::nullopt;
};

/// Copy of a device's tensors to host memory, possibly in progress.
class StagedCopy {
 public:
  virtual ~StagedCopy() = default;

  /// Returns the copies in host memory, in the order of the parts. They are complete after
  /// wait_on_host() has returned, and valid until the stager's next begin().
  virtual const std::vector<at::Tensor>& copies() const = 0;
  /// Makes later kernels of the calling thread's stream wait until the originals have been read and
  /// may change. The host does not wait.
  virtual void hold_caller() = 0;
  /// Waits until the copies are complete; any thread may call it. Throws Error(kUnavailable) if the
  /// device failed. Also throws the error of the stager's communicator, so that data left by an
  /// aborted collective is never used.
  virtual void wait_on_host() = 0;
};

/// Copier of a device's tensors into pinned host memory, on a separate stream
/// (Communicator::make_stager()). The memory is reused from one copy to the next. One caller at a
/// time.
class DeviceStager {
 public:
  virtual ~DeviceStager() = default;

  virtual at::Device device() const = 0;
  /// Allocates the memory for copies of this many bytes, which may take seconds. Throws
  /// Error(kUnavailable) if there is none.
  virtual void prepare(int64_t num_bytes) = 0;
  /// Starts a copy of the parts. It begins when the calling thread's stream has done its present
  /// work; the host does not wait. Throws as prepare(), and the communicator's error if it has
  /// failed.
  virtual std::unique_ptr<StagedCopy> begin(const std::vector<StagedPart>& parts) = 0;

  /// Returns the memory in bytes for copies of these parts.
  static int64_t bytes_of(const std::vector<StagedPart>& parts) {
    int64_t num_bytes = 0;
    for (const StagedPart& part : parts) num_bytes += padded_bytes(part.tensor);
    return num_bytes;
  }

 protected:
  /// Returns the size of one copy, padded so that the next begins at a cache line.
  static int64_t padded_bytes(const at::Tensor& tensor) {
    return (static_cast<int64_t>(tensor.nbytes()) + 63) / 64 * 64;
  }
};

}  // namespace lockstep
