#include "train/run.h"

#include <csignal>
#include <filesystem>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "train/stopwatch.h"

namespace lockstep::train {
namespace {

std::optional<int64_t> free_bytes_beside(const std::filesystem::path& save) {
  std::error_code fault;
  const auto space = std::filesystem::space(save.parent_path(), fault);
  return fault ? std::nullopt : std::optional(static_cast<int64_t>(space.available));
}

}  // namespace

RunResult Run::go() {
  StepClock& clock = parts_.training.clock;
  if (clock.step >= parts_.total_steps && parts_.training.control.rank() == 0)
    log::info(
        "train",
        fmt::format(
            "all {} steps were done before: nothing to train (choose another run.project_dir to "
            "train anew)",
            clock.step));
  parts_.recorder.state(metrics::RunState::kTraining);
  while (clock.step < parts_.total_steps) {
    if (parts_.on_step) parts_.on_step(clock.step, parts_.training.model);
    const StepReport report = parts_.trainer.step(votes());
    parts_.recorder.step(report);
    if (parts_.agreement.is_due(clock.step)) agree(fmt::format("at step {}", clock.step));
    const bool is_last =
        clock.step >= parts_.total_steps;  // then it finishes, whoever asks to stop
    // A rank that asks to save and stop goes on asking: after a skipped update the next one stops.
    const bool stops = report.must_end || (report.wants_stop && !report.skipped);
    if (stops && !is_last) return stop(report);
    // A skipped update changed nothing; saving it again and again would push good saves out.
    save_is_due_ = report.wants_save && !report.skipped;
    if (save_is_due_ && !is_last) save();
    if (evaluation_due(report)) (void)evaluate_now();
  }
  return finish();
}

Votes Run::votes() const {
  return {.save = parts_.schedule.due_here(parts_.training.clock.step + 1),
          .stop = parts_.stop.stop_asked(),
          .end = parts_.stop.end_asked()};
}

bool Run::evaluation_due(const StepReport& report) const {
  const int64_t every_epochs = parts_.eval.every_epochs;
  const StepClock& clock = parts_.training.clock;
  return parts_.eval_data != nullptr && every_epochs > 0 && report.ends_epoch &&
         clock.step < parts_.total_steps &&
         (clock.step / clock.steps_per_epoch) % every_epochs == 0;
}

EvalResult Run::evaluate_now() {
  parts_.recorder.state(metrics::RunState::kValidating);
  const EvalResult result = evaluate(parts_.training.model, *parts_.eval_data, parts_.eval,
                                     parts_.training.control, [&] { parts_.recorder.turn(); });
  parts_.recorder.evaluation(parts_.training.clock.step, result);
  parts_.recorder.state(metrics::RunState::kTraining);
  return result;
}

void Run::save() {
  parts_.recorder.flush();  // the steps' record reaches as far as the save, whatever happens next
  Stopwatch watch;
  parts_.recorder.state(metrics::RunState::kSaving);
  const int64_t step = parts_.training.clock.step;
  if (agreed_step_ != step) agree(fmt::format("to be saved at step {}", step));
  const checkpoint::SaveResult result = parts_.saver.save(parts_.state(), step);
  const double stall_s = watch.lap();
  parts_.schedule.saved();
  longest_save_s_ = std::max(longest_save_s_, stall_s);
  last_save_ok_ = result.ok;
  if (result.ok) {
    last_commit_ = result.prefix;
    last_saved_step_ = step;
    if (parts_.training.control.rank() == 0)
      log::info("checkpoint", fmt::format("saved step {}: {} ({} bytes, {:.3f} s)", step,
                                          result.prefix, result.bytes_written, result.seconds));
  }
  parts_.recorder.save({.step = step,
                        .committed = result.ok,
                        .duration_s = result.seconds,
                        .stall_s = stall_s,
                        .written_bytes = result.bytes_written,
                        .free_bytes = free_bytes_beside(result.prefix)});
  parts_.recorder.state(metrics::RunState::kTraining);
}

/// Ranks that have parted must not go on, and must not push good saves out.
void Run::agree(const std::string& when) {
  parts_.agreement.require(when);
  agreed_step_ = parts_.training.clock.step;
  parts_.recorder.agreement(parts_.agreement);
}

/// Twice the longest save of this process; before the first one, what a slow disk would need.
bool Run::save_fits_the_grace() const {
  constexpr double kSlowDiskBytesPerS = 50e6, kFixed_s = 0.2;
  if (longest_save_s_ > 0) return 2 * longest_save_s_ < parts_.grace_s;
  double num_bytes = 0;
  for (const StateEntry& entry : parts_.state())
    if (entry.tensor.defined()) num_bytes += static_cast<double>(entry.tensor.nbytes());
  return kFixed_s + num_bytes / kSlowDiskBytesPerS < parts_.grace_s;
}

RunResult Run::stop(const StepReport& report) {
  tell_signals();
  parts_.recorder.state(metrics::RunState::kDraining);
  // Rank 0's clock decides for all whether there is time.
  const bool fits_here = report.wants_stop || save_fits_the_grace();
  at::Tensor fits = at::full({1}, fits_here ? 1 : 0, at::kLong);
  parts_.training.control.broadcast(fits, 0);
  if (fits.item<int64_t>() == 0 || report.skipped) {
    if (parts_.training.control.rank() == 0)
      log::warning(
          "train",
          fmt::format("ended at step {} without a save ({}): the last commit stands ({})",
                      report.step,
                      report.skipped ? "its update was not finite"
                                     : fmt::format("{} s of grace are too few", parts_.grace_s),
                      last_commit_.empty() ? "there is none" : last_commit_));
    parts_.recorder.flush();
    return {RunEnd::kEnded, std::nullopt, last_commit_};
  }
  save();
  if (last_saved_step_ != report.step)
    throw Error(ExitCode::kIo, "train",
                "asked to save and stop, but the save failed; the log says why")
        .everywhere();
  if (parts_.training.control.rank() == 0)
    log::info(
        "train",
        fmt::format("stopped at step {} on request, saved {}; run the same command again to go on",
                    report.step, last_commit_));
  return {RunEnd::kStopped, std::nullopt, last_commit_};
}

void Run::tell_signals() {
  if (parts_.stop.stop_asked()) parts_.recorder.signal(SIGUSR1);
  if (parts_.stop.end_asked()) parts_.recorder.signal(SIGTERM);
}

RunResult Run::finish() {
  const StepClock& clock = parts_.training.clock;
  const recal::Applied closing = parts_.trainer.close();
  if (closing.num_mask_updates > 0) agreed_step_ = -1;  // weights and masks are others since
  parts_.recorder.closing(clock.step, closing, parts_.training.arena.num_trainable_elements());
  const bool is_new = closing.masks_changed || last_saved_step_ != clock.step;
  const bool must_save = is_new && (parts_.save_at_end || save_is_due_);
  if (must_save) save();
  RunResult result{RunEnd::kFinished, std::nullopt, last_commit_};
  if (must_save && !last_save_ok_) result.end = RunEnd::kNotSaved;
  if (parts_.eval_data != nullptr) result.eval = evaluate_now();
  parts_.training.recipe.finalize(clock.step, parts_.training.control);
  parts_.recorder.state(metrics::RunState::kFinished);
  parts_.recorder.flush();
  return result;
}

}  // namespace lockstep::train
