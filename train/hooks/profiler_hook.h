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
/// <project_dir>/timeline-<step>.json, which Perfetto opens. Steps that leave none cost nothing
/// but, with save_secs, a word of rank 0 to the others.
///
/// A trace that cannot be written is warned of and ends nothing.
class ProfilerHook final : public Hook {
 public:
  /// `control` must outlive it.
  ProfilerHook(const ProfileOptions& options, dist::Communicator& control, std::string node);

  void begin(const LoopStart& start) override;
  void before_step(int64_t step) override;
  void after_step(const IterationEnd& end) override;

 private:
  bool is_due(int64_t step);
  bool is_traced_here() const;
  void start() const;
  RankTrace stop() const;

  const ProfileOptions options_;
  dist::Communicator& control_;
  const std::string node_;
  std::filesystem::path folder_;
  std::optional<double> last_s_;  // of rank 0: when the last one was made, or the loop began
  bool is_under_way_ = false;
};

}  // namespace lockstep::train
