#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/device/device_stager.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/watched_comm.h"

namespace lockstep::dist::nccl {

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
  PinnedStager(std::shared_ptr<GpuCalls> gpu, std::shared_ptr<WatchedComm> comm);
  ~PinnedStager() override;
  PinnedStager(const PinnedStager&) = delete;
  PinnedStager& operator=(const PinnedStager&) = delete;

  at::Device device() const override { return gpu_->device(); }
  void prepare(int64_t num_bytes) override;
  std::unique_ptr<StagedCopy> begin(const std::vector<StagedPart>& parts) override;

 private:
  bool is_idle() const;
  std::vector<at::Tensor> copy_all(const std::vector<StagedPart>& parts);
  void copy(const StagedPart& part, std::byte* to);

  const std::shared_ptr<GpuCalls> gpu_;
  const std::shared_ptr<WatchedComm> comm_;
  std::shared_ptr<std::byte> memory_;
  int64_t num_bytes_ = 0;
  std::shared_ptr<Event> last_;  ///< event B of the last copy
};

}  // namespace lockstep::dist::nccl
