#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/device/device_stager.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/watched_comm.h"

namespace lockstep::dist::nccl {

/// Copies of a GPU's tensors in page-locked memory, on a stream of their own:
///
///   compute  ... update | event A | forward, backward | behind B: update
///   copies              behind A: copies | event B
///
/// The host waits for B where it reads the copies. LibTorch gives the memory of an original to
/// others only after B, whoever lets go of it. The copies' memory is not given back while the
/// stream may write to it: if the stream is not done at the end, it is leaked instead.
class PinnedStager final : public DeviceStager {
 public:
  /// gpu: its own stream is for these copies alone. comm: on a device that this communicator has
  /// given up, copies are garbage.
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
  std::shared_ptr<Event> last_;  ///< B of the copy begun last
};

}  // namespace lockstep::dist::nccl
