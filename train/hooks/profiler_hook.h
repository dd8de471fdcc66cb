#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dist/communicator.h"
#include "train/hooks/hook.h"
#include "train/hooks/profile_options.h"
#include "train/hooks/timeline.h"

namespace lockstep::train {

/// Traces whole steps: LibTorch's operators (Kineto) and Lockstep's own spans (data, masks,
/// forward, backward, each bucket's reduction, optimizer). Rank 0 merges the ranks' traces into
/// <project_dir>/timeline-<step>.json, which Perfetto opens. Lockstep's spans extend to the next
/// step, to include saves and evaluations after the step. Operators are those of the step, on a GPU
/// also its kernels. Other steps cost nothing, except for one small message from rank 0 with
/// save_secs.
///
/// A failed write of a trace only logs a warning.
class ProfilerHook final : public Hook {
 public:
  /// `control` must outlive this.
  ProfilerHook(const ProfileOptions& options, dist::Communicator& control, std::string node,
               at::Device device);

  void begin(const LoopStart& start) override;
  void before_step(int64_t step) override;
  void after_step(const IterationEnd& end) override;
  void end() override { write_pending(); }

 private:
  bool is_due(int64_t step);
  bool is_traced_here() const;
  void start() const;
  std::string stop_operators() const;
  std::string own_events();
  void write_pending();

  const ProfileOptions options_;
  dist::Communicator& control_;
  const std::string node_;
  const at::Device device_;
  std::filesystem::path folder_;
  std::optional<double> last_s_;  // on rank 0: time of the last trace, or of the loop's begin
  bool is_under_way_ = false;
  /// A traced step whose spans continue until the next step begins.
  struct Pending {
    int64_t step = 0;
    std::string operators_json;
  };
  std::optional<Pending> pending_;
};

}  // namespace lockstep::train
