#include "train/run.h"

#include <filesystem>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "train/step/stopwatch.h"

namespace lockstep::train {
RunResult Run::go() {
  RunResult result = train();
  parts_.callbacks.end();
  return result;
}

RunResult Run::train() {
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
    if (parts_.on_step) {
      parts_.saves.wait_until_staged();
      parts_.on_step(clock.step, parts_.training.model);
    }
    const StepReport report = parts_.trainer.step(votes());
    parts_.recorder.step(report);
    parts_.callbacks.on_step_end(report);
    count_signals();
    if (report.save_is_done) parts_.saves.settle();
    if (parts_.replica_check.is_due(clock.step)) agree(fmt::format("at step {}", clock.step));
    const bool is_last =
        clock.step >= parts_.total_steps;  // then it finishes, whoever asks to stop
    // A rank that asks to save and stop goes on asking: after a skipped update the next one stops.
    const bool stops = report.must_end || (report.wants_stop && !report.skipped);
    if (stops && !is_last) return stop(report);
    // A skipped update changed nothing; saving it again and again would push good saves out.
    // It is made up for at the next one that counts.
    save_is_owed_ = report.wants_save || save_is_owed_;
    save_is_due_ = save_is_owed_ && !report.skipped;
    if (save_is_due_) save_is_owed_ = false;
    if (save_is_due_ && !is_last) {
      parts_.training.reducer.settle();  // no save of weights that a lost rank left half updated
      parts_.saves.begin();
    }
    if (evaluation_due(report)) (void)evaluate_now();
  }
  return finish();
}

Votes Run::votes() const {
  return {.save = parts_.saves.due_here(parts_.training.clock.step + 1),
          .stop = parts_.stop.stop_asked(),
          .save_done = parts_.saves.done_here(),
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
  parts_.training.reducer.settle();
  parts_.recorder.state(metrics::RunState::kValidating);
  const EvalResult result =
      evaluate(parts_.training.model, parts_.training.loss, *parts_.eval_data, parts_.eval,
               parts_.training.control, [&] { parts_.recorder.turn(); });
  parts_.recorder.evaluation(parts_.training.clock.step, result);
  parts_.saves.evaluated(result);
  parts_.callbacks.on_evaluation_end(parts_.training.clock.step, result);
  parts_.recorder.state(metrics::RunState::kTraining);
  return result;
}

/// Ranks that have parted must not go on, and must not push good saves out.
void Run::agree(const std::string& when) {
  parts_.training.reducer.settle();
  parts_.replica_check.require(when);
  parts_.recorder.replica_check(parts_.replica_check);
}

/// Whether there is what a save needs: a finite update, time, a folder. Rank 0's clock decides for
/// all whether there is time.
bool Run::can_save(const StepReport& report) {
  const bool fits_here = report.wants_stop || parts_.saves.fits(parts_.grace_s);
  at::Tensor fits = at::full({1}, fits_here ? 1 : 0, at::kLong);
  parts_.training.control.broadcast(fits, 0);
  std::string reason;
  if (fits.item<int64_t>() == 0) reason = fmt::format("{} s of grace are too few", parts_.grace_s);
  if (report.skipped) reason = "its update was not finite";
  if (!parts_.saves.enabled()) reason = "checkpoint is off";
  if (reason.empty()) return true;
  if (parts_.training.control.rank() == 0)
    log::warning("train",
                 fmt::format("ended at step {} without a save ({}): the last commit stands ({})",
                             report.step, reason,
                             parts_.saves.last_commit().empty() ? "there is none"
                                                                : parts_.saves.last_commit()));
  return false;
}

RunResult Run::stop(const StepReport& report) {
  parts_.training.reducer.settle();
  parts_.recorder.state(metrics::RunState::kDraining);
  if (!can_save(report)) {
    parts_.training.recipe.finalize_stopped();
    parts_.recorder.flush();
    return {RunEnd::kEnded, std::nullopt, parts_.saves.last_commit()};
  }
  parts_.saves.settle();
  if (parts_.saves.last_saved_step() != report.step && !parts_.saves.save_now())
    throw Error(ExitCode::kIo, "train",
                "asked to save and stop, but the save failed; the log says why")
        .everywhere();
  count_signals();
  if (parts_.training.control.rank() == 0)
    log::info(
        "train",
        fmt::format("stopped at step {} on request, saved {}; run the same command again to go on",
                    report.step, parts_.saves.last_commit()));
  parts_.training.recipe.finalize_stopped();
  return {RunEnd::kStopped, std::nullopt, parts_.saves.last_commit()};
}

void Run::count_signals() {
  for (size_t i = 0; i < kCountedSignals.size(); ++i)
    for (const int64_t now = parts_.stop.num_received(kCountedSignals[i]); counted_[i] < now;
         ++counted_[i])
      parts_.recorder.signal(kCountedSignals[i]);
}

RunResult Run::finish() {
  const StepClock& clock = parts_.training.clock;
  parts_.training.reducer.settle();
  parts_.saves.settle();
  const recal::Applied closing = parts_.trainer.close();
  parts_.recorder.closing(clock.step, closing,
                          parts_.training.flat_params.num_trainable_elements());
  const bool is_new = closing.masks_changed || parts_.saves.last_saved_step() != clock.step;
  const bool must_save = is_new && (parts_.save_at_end || save_is_due_);
  RunResult result;
  if (must_save && !parts_.saves.save_now()) result.end = RunEnd::kNotSaved;
  if (parts_.eval_data != nullptr) result.eval = evaluate_now();
  parts_.saves.settle();
  result.checkpoint = parts_.saves.last_commit();
  parts_.training.recipe.finalize(clock.step, parts_.training.control);
  count_signals();
  parts_.recorder.state(metrics::RunState::kFinished);
  parts_.recorder.flush();
  return result;
}

}  // namespace lockstep::train
