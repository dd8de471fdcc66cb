#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dist/communicator.h"
#include "train/hooks/hook.h"
#include "train/hooks/profile_options.h"
#include "train/hooks/timeline.h"

namespace lockstep::train {

/// Traces of whole steps: LibTorch's operators (Kineto) and Lockstep's own spans (data, masks,
/// forward, backward, each bucket's reduction, optimizer) of the ranks, merged by rank 0 into
/// <project_dir>/timeline-<step>.json, which Perfetto opens. Lockstep's spans reach to the next
/// step, so that they hold the saves and evaluations behind the step; operators are those of the
/// step, on a GPU its kernels too. Steps that leave none cost nothing but, with save_secs, a word
/// of rank 0 to the others.
///
/// A trace that cannot be written is warned of and ends nothing.
class ProfilerHook final : public Hook {
 public:
  /// `control` must outlive it.
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
  std::optional<double> last_s_;  // of rank 0: when the last one was made, or the loop began
  bool is_under_way_ = false;
  /// A traced step whose spans go on until the next one begins.
  struct Pending {
    int64_t step = 0;
    std::string operators_json;
  };
  std::optional<Pending> pending_;
};

}  // namespace lockstep::train
