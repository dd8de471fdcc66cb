// A save runs in the saver's thread while training continues. settle() is its end: the only place
// that records a result, called by all ranks at the same step.
#include "train/run_saves.h"

#include <chrono>
#include <filesystem>

#include <fmt/format.h>

#include "base/log.h"
#include "base/trace.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "dist/communicator.h"
#include "train/past_evaluations.h"
#include "train/step/training_pass.h"

namespace lockstep::train {
namespace {

// Interval of the votes in wait_together()
constexpr std::chrono::milliseconds kMeetEvery{200};

std::optional<int64_t> free_bytes_beside(const std::filesystem::path& save) {
  std::error_code fault;
  const auto space = std::filesystem::space(save.parent_path(), fault);
  return fault ? std::nullopt : std::optional(static_cast<int64_t>(space.available));
}

/// Returns the best value so far, read by rank 0. nullopt if it belongs to another metric, or to a
/// checkpoint after the one that the run resumes from. That checkpoint will be made again, and
/// train/evals.csv no longer contains it.
std::optional<double> best_so_far(const RunSavesParts& parts) {
  std::string text;
  if (parts.control.rank() == 0) {
    const auto best = checkpoint::read_best(parts.prefix);
    if (best && best->metric == parts.options.keep_best && best->number <= parts.clock.step)
      text = fmt::format("{}", best->value);
  }
  text = dist::broadcast_text(parts.control, text);
  return text.empty() ? std::nullopt : std::optional(std::stod(text));
}

}  // namespace

RunSaves::RunSaves(const RunSavesParts& parts)
    : parts_(parts), last_saved_step_(parts.last_saved_step), last_commit_(parts.last_commit) {
  if (enabled() && parts_.options.keep_best != "none") best_value_ = best_so_far(parts_);
}

void RunSaves::begin() {
  // One save at a time: the saver allows no second one.
  settle();
  const trace::Span span("begin a save");
  if (parts_.before) parts_.before();
  // The record of steps must reach as far as the checkpoint, whatever happens next.
  parts_.recorder.flush();
  parts_.recorder.state(metrics::RunState::kSaving);
  Stopwatch watch;
  const StateList state = parts_.state();
  begin_s_ = watch.lap();
  parts_.saver.begin(state, parts_.clock.step);
  // The interval counts from the begin of a save, not from its commit.
  parts_.schedule.saved();
  if (parts_.options.wait_for == "staging") parts_.saver.wait_until_staged();
  if (parts_.options.wait_for == "commit") settle();
  parts_.recorder.state(metrics::RunState::kTraining);
}

/// Waits for the save on all ranks, which vote every kMeetEvery. So sync.timeout_s detects a
/// process that hangs. If only the thread of a saver hangs, its rank continues to vote. Then the
/// savers of other ranks detect it after checkpoint.timeout_s.
void RunSaves::wait_together() {
  bool is_done = false;
  do is_done = parts_.saver.is_done_within(kMeetEvery);
  while (dist::any_of(parts_.control, !is_done));
}

void RunSaves::settle() {
  if (!parts_.saver.is_under_way()) return;
  const trace::Span span("wait for a save");
  wait_together();
  const checkpoint::SaveResult result = parts_.saver.wait();
  longest_s_ = std::max(longest_s_, result.seconds);
  last_ok_ = result.ok;
  if (result.ok) {
    last_commit_ = result.prefix;
    last_saved_step_ = result.number;
    parts_.replica_check.count(result.compare_s);
    parts_.recorder.replica_check(parts_.replica_check);
    if (parts_.control.rank() == 0)
      log::info("checkpoint",
                fmt::format("saved step {}: {} ({} bytes{}, {:.3f} s, training waited {:.3f} s)",
                            result.number, result.prefix, result.bytes_written,
                            parts_.options.sparse ? fmt::format(" for {}", result.bytes_dense) : "",
                            result.seconds, begin_s_ + result.blocked_s));
    name_best();
  }
  parts_.recorder.save({.step = result.number,
                        .committed = result.ok,
                        .duration_s = result.seconds,
                        .stall_s = begin_s_ + result.blocked_s,
                        .written_bytes = result.bytes_written,
                        .free_bytes = free_bytes_beside(result.prefix)});
}

bool RunSaves::save_now() {
  begin();
  settle();
  return last_ok_ && last_saved_step_ == parts_.clock.step;
}

void RunSaves::evaluated(const EvalResult& result) {
  if (!enabled() || parts_.options.keep_best == "none") return;
  if (to_be_named_) settle();  // the best so far may be the one whose save is in progress
  const double value = number_of(result, parts_.options.keep_best);
  if (!is_better(parts_.options.keep_best, value, best_value_)) return;
  const int64_t step = parts_.clock.step;
  to_be_named_ = {step, value};
  // The step may be saved, in progress, or neither. While saves fail, a later best one is saved.
  const bool is_begun = parts_.saver.is_under_way() && parts_.saver.number() == step;
  if (last_saved_step_ == step)
    name_best();
  else if (!is_begun && may_begin())
    begin();
}

void RunSaves::name_best() {
  if (!to_be_named_ || to_be_named_->step != last_saved_step_) return;
  best_value_ = to_be_named_->value;
  if (parts_.control.rank() == 0) try {
      checkpoint::write_best(parts_.prefix, {.number = to_be_named_->step,
                                             .metric = parts_.options.keep_best,
                                             .value = to_be_named_->value});
    } catch (const Error& fault) {
      log::warning("checkpoint",
                   fmt::format("the best checkpoint cannot be recorded: {}", fault.what()));
    }
  to_be_named_.reset();
}

bool RunSaves::fits(double grace_s) const {
  // Estimates before the first save: a slow disk writes 50 MB/s, plus a fixed 0.2 s.
  constexpr double kSlowDiskBytesPerS = 50e6, kFixed_s = 0.2;
  if (longest_s_ > 0) return 2 * longest_s_ < grace_s;
  double num_bytes = 0;
  for (const StateEntry& entry : parts_.state())
    if (entry.tensor.defined()) num_bytes += static_cast<double>(entry.tensor.nbytes());
  return kFixed_s + num_bytes / kSlowDiskBytesPerS < grace_s;
}

}  // namespace lockstep::train
