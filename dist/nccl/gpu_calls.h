#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/tensors/device_backend.h"
#include "dist/communicator.h"

/// Interface between the communicator's logic and CUDA and NCCL. The logic (order of calls, events,
/// deadlines, abort) includes no header of them. So tests run it over a fake device
/// (tests/support/fake_gpu.h). dist/nccl/cuda_calls.cpp has the real implementation.
namespace lockstep::dist::nccl {

using Stream = void*;       ///< a cudaStream_t
using EventHandle = void*;  ///< a cudaEvent_t
using CommHandle = void*;   ///< an ncclComm_t

/// Result of an NCCL call, or state of a communicator.
struct Result {
  enum class Kind { kDone, kInProgress, kFailed };
  Kind kind = Kind::kDone;
  std::string reason = {};  ///< of kFailed: NCCL's message

  bool is_in_progress() const { return kind == Kind::kInProgress; }
  bool is_failed() const { return kind == Kind::kFailed; }
};

/// Calls for one device of this process. CUDA's calls throw Error(kUnavailable) with CUDA's reason;
/// NCCL's return a Result. Calls on streams and events require the device to be the calling
/// thread's current one (use_device()).
///
/// Threads: any, but one call at a time with the same communicator handle. state() and abort() may
/// run during another call.
class GpuCalls {
 public:
  virtual ~GpuCalls() = default;

  virtual at::Device device() const = 0;
  /// Throws Error(kUnavailable) if this process has no such device or lacks a library.
  virtual void require_usable() = 0;
  /// Makes the device the calling thread's current one until the result is destroyed.
  virtual std::shared_ptr<void> use_device() = 0;

  /// Implements Communicator::make_graph().
  virtual std::shared_ptr<DeviceGraph> make_graph() = 0;

  /// Returns calls for the same device with a different own_stream().
  virtual std::shared_ptr<GpuCalls> beside() = 0;

  /// Returns the calling thread's current stream, on which its kernels run.
  virtual Stream callers_stream() = 0;
  /// Returns the communicator's stream, separate from the caller's.
  virtual Stream own_stream() = 0;
  /// Enqueues the kernels that `part` launches on own_stream().
  virtual void enqueue_kernels(std::function<void()> part) = 0;
  /// Keeps the tensor's memory from reuse until own_stream() has passed this point.
  virtual void keep_until_done(const at::Tensor& tensor) = 0;

  /// Records a new event, which is reached when the stream has done all its present work.
  virtual EventHandle record(Stream stream) = 0;
  /// Makes later work of the stream wait for the event; the host does not wait.
  virtual void hold(Stream stream, EventHandle event) = 0;
  virtual bool is_reached(EventHandle event) = 0;
  virtual void destroy(EventHandle event) = 0;

  /// Allocates page-locked host memory; throws Error(kUnavailable). All writes of own_stream() into
  /// it must be done when the last owner releases it.
  virtual std::shared_ptr<std::byte> pin_memory(int64_t num_bytes) = 0;
  /// Enqueues a copy of device memory into pinned memory on own_stream(). `from` is inside `owner`,
  /// which is kept only if keep_until_done() is called for it.
  virtual void copy_to_host(std::byte* to, const std::byte* from, int64_t num_bytes,
                            const at::Tensor& owner) = 0;

  // Enqueue on callers_stream() the kernels of kept_kernels.cu; tensors as in DevicePacking.
  virtual void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                         const at::Tensor& packed_K) = 0;
  virtual void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                           const at::Tensor& items_E) = 0;

  /// Returns the bytes by which the ranks of a new communicator find each other; throws
  /// Error(kUnavailable).
  virtual std::string make_unique_id() = 0;
  /// Starts a communicator in non-blocking mode. *comm is set on return.
  virtual Result init(const std::string& unique_id, int num_ranks, int rank, CommHandle* comm) = 0;
  /// Starts a split. NCCL's thread sets *part, null before, possibly some time after `comm` is no
  /// longer in progress. The part may still be in progress then.
  virtual Result split(CommHandle comm, int color, int key, CommHandle* part) = 0;
  virtual int rank(CommHandle comm) = 0;
  virtual int num_ranks(CommHandle comm) = 0;
  /// Returns kInProgress while a call is pending, kFailed once a peer was lost or a collective
  /// failed.
  virtual Result state(CommHandle comm) = 0;
  /// Starts the orderly shutdown. Then poll state() and call destroy_comm().
  virtual Result finalize(CommHandle comm) = 0;
  /// Free the handle and may block. abort() also stops the device's collectives; data is undefined.
  virtual Result destroy_comm(CommHandle comm) = 0;
  virtual Result abort(CommHandle comm) = 0;

  // Enqueue one collective on own_stream(). Tensors are contiguous, on device(), not empty.
  virtual Result all_reduce(CommHandle comm, const at::Tensor& values_K, ReduceOp op) = 0;
  virtual Result reduce_scatter(CommHandle comm, const at::Tensor& out_K,
                                const at::Tensor& values_NK) = 0;
  virtual Result all_gather(CommHandle comm, const at::Tensor& out_NK,
                            const at::Tensor& values_K) = 0;
  virtual Result broadcast(CommHandle comm, const at::Tensor& values_K, int root) = 0;
  /// Sends piece r of values_NK to rank r; piece r of out_NK comes from rank r.
  virtual Result all_to_all(CommHandle comm, const at::Tensor& out_NK,
                            const at::Tensor& values_NK) = 0;
};

/// A point on a stream; owns its handle.
class Event {
 public:
  Event(std::shared_ptr<GpuCalls> gpu, Stream stream)
      : gpu_(std::move(gpu)), handle_(gpu_->record(stream)) {}
  ~Event() { gpu_->destroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void hold(Stream stream) const { gpu_->hold(stream, handle_); }
  bool is_reached() const { return gpu_->is_reached(handle_); }

 private:
  std::shared_ptr<GpuCalls> gpu_;
  EventHandle handle_;
};

}  // namespace lockstep::dist::nccl
