#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/tensors/device_backend.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/kept_items.h"
#include "dist/nccl/watched_comm.h"

/// Implementations of base/tensors/device_backend.h for GPUs: packing and staging.
namespace lockstep::dist::nccl {

MaskView view_of(const DeviceMask& mask);

/// Packing by kernels (dist/nccl/kept_items.h). Results are bit-identical to those of the
/// CPU's functions, since items are only moved.
class GpuPacking final : public DevicePacking {
 public:
  explicit GpuPacking(std::shared_ptr<GpuCalls> gpu) : gpu_(std::move(gpu)) {}

  DeviceMask to_device(const uint8_t* bits, int64_t num_items) const override;
  void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                 const at::Tensor& packed_K) const override;
  void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                   const at::Tensor& items_E) const override;

 private:
  const std::shared_ptr<GpuCalls> gpu_;
};

/// Copies of a GPU's tensors in page-locked memory, on a separate stream:
///
///   compute  ... update | event A | forward, backward | wait for B: update
///   copies              wait for A: copies | event B
///
/// The host waits for B before it reads the copies. LibTorch reuses the memory of an original only
/// after B, even if its owner releases it earlier. The memory of the copies is never freed while
/// the stream may write to it. If the stream is not done at the end, that memory is leaked.
class PinnedStager final : public DeviceStager {
 public:
  /// gpu: its own_stream() is for these copies alone. comm: after an abort of this communicator,
  /// copies are undefined, and waits throw its error.
  PinnedStager(std::shared_ptr<GpuCalls> gpu, std::shared_ptr<WatchedComm> comm)
      : gpu_(std::move(gpu)), comm_(std::move(comm)) {}
  ~PinnedStager() override;
  PinnedStager(const PinnedStager&) = delete;
  PinnedStager& operator=(const PinnedStager&) = delete;

  at::Device device() const override { return gpu_->device(); }
  void prepare(int64_t num_bytes) override;
  std::unique_ptr<StagedCopy> begin(const std::vector<StagedPart>& parts) override;

 private:
  bool is_idle() const;
  std::vector<at::Tensor> copy_all(const std::vector<StagedPart>& parts);

  const std::shared_ptr<GpuCalls> gpu_;
  const std::shared_ptr<WatchedComm> comm_;
  std::shared_ptr<std::byte> memory_;
  int64_t num_bytes_ = 0;
  std::shared_ptr<Event> last_;  ///< event B of the last copy
};

}  // namespace lockstep::dist::nccl
