#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "base/yaml/config_reader.h"
#include "dist/communicator.h"
#include "train/hook.h"

/// Traces of whole steps in Chrome's Trace Event Format, which Perfetto and chrome://tracing open.
namespace lockstep::train {

/// Selects the steps to trace: `trainer.run_config.profile_hook_config` of the run file, with the
/// names of TensorFlow's ProfilerHook.
struct ProfileOptions {
  std::optional<int64_t> save_steps;  ///< each step whose number is a multiple
  std::optional<double> save_secs;    ///< or the next step after this time, by rank 0's clock
  bool show_memory = false;           ///< include allocations
  bool show_dataflow = true;          ///< include arrows from forward to backward operators
  std::vector<int64_t> ranks;         ///< traced ranks; empty: all
};

/// Returns nullopt if the section is missing.
std::optional<ProfileOptions> read_profile_options(ConfigReader* run_config);

/// Trace of one rank in a step.
struct RankTrace {
  std::string operators_json;            ///< output of LibTorch's profiler; empty: none
  std::vector<trace::SpanRecord> spans;  ///< Lockstep's own spans
  /// Names of threads without named spans, by the system's thread number.
  std::map<int64_t, std::string> thread_names = {};
};

struct TimelineOptions {
  int rank = 0;
  std::string node;
  bool show_dataflow = true;
  bool show_memory = false;
};

/// Returns the events of a rank as a JSON list. Process = rank; threads (and streams of a GPU) have
/// names; times are in whole nanoseconds since 1970. Events of a thread are disjoint or nested. The
/// clocks of LibTorch and Lockstep differ by some microseconds. So an operator that crosses the
/// begin or end of a Lockstep span is cut there.
std::string rank_events(const RankTrace& trace, const TimelineOptions& options);

/// Merges the lists of all ranks into one trace; empty texts are skipped. Times are in
/// microseconds, from 0; baseTimeNanoseconds is the origin.
std::string merged_timeline(const std::vector<std::string>& rank_events);

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
