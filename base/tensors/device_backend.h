#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"

/// Interfaces to a device: graphs, packing, copies to the host. dist/nccl implements them.
namespace lockstep {

/// CUDA graph: device work that is captured once and then repeated by one call of the host. Such a
/// call takes microseconds, however many kernels there are (Communicator::make_graph()). One caller
/// at a time.
///
///   graph->capture([&] {         // computes nothing yet
///     loss = forward(inputs);
///     loss.backward();
///   });
///   graph->replay();             // now loss is that of these inputs
///
///   inputs.copy_(others);
///   graph->replay();             // and now of the others
///
/// Source: CUDA C++ Programming Guide, "CUDA Graphs"; PyTorch's torch.cuda.graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures the kernels that `body` launches on the calling thread's stream and, in backward, on
  /// autograd's threads. The host code of `body` runs once, here. Host values keep their present
  /// values. Each replay() reads and writes tensors at their present addresses. Memory that `body`
  /// allocates belongs to the graph until the next capture() or the end. That holds even if a
  /// tensor outlives it. `body` must not wait for the device or copy from it. An earlier capture is
  /// replaced.
  ///
  /// Throws what `body` throws, and Error(kUnavailable) if the device cannot capture it. Nothing is
  /// captured then.
  virtual void capture(const std::function<void()>& body) = 0;
  /// Enqueues the captured work on the calling thread's stream; the host does not wait. Only after
  /// capture().
  virtual void replay() = 0;
  /// Frees what the graph holds; nothing is captured afterwards.
  virtual void forget() = 0;
};

/// Bit mask (base/simd/bit_mask.h) in the form for a device. Item i is bit i % 64 of word i / 64.
/// The number of kept items before each word is stored too.
struct DeviceMask {
  int64_t num_items = 0, num_kept = 0;
  at::Tensor words_W;   ///< int64
  at::Tensor before_W;  ///< int64
};

/// Packing of a device's tensors on the calling thread's stream, as pack_kept() and unpack_kept()
/// of base/simd/bit_mask.h (Communicator::make_packing()). Items are 2, 4 or 8 bytes wide. Tensors
/// are contiguous: [E] = items of the mask, [K] = kept ones. Thread-safe.
class DevicePacking {
 public:
  virtual ~DevicePacking() = default;

  /// Copies the mask to the device; the host waits for the copy.
  virtual DeviceMask to_device(const uint8_t* bits, int64_t num_items) const = 0;
  /// Sets packed_K = the kept items in order.
  virtual void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                         const at::Tensor& packed_K) const = 0;
  /// Reverses pack_kept(); the other items become +0.
  virtual void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                           const at::Tensor& items_E) const = 0;
};

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
