// The training loop. All ranks must make the same collective calls at the same step. So the loop
// branches only on values of the step's report, which are equal on all ranks, or on agreements made
// here. reducer.settle() comes before any look at the weights from the host.
#include "train/run.h"

#include <chrono>
#include <thread>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/trace.h"
#include "coord/callback.h"
#include "dist/communicator.h"

namespace lockstep::train {
namespace {

// Interval between two votes during a pause
constexpr std::chrono::milliseconds kPauseTurn{50};

}  // namespace

RunResult Run::go() {
  parts_.hooks.begin(coord::Mode::kTrain, parts_.training.clock.step,
                     parts_.training.clock.steps_per_epoch);
  RunResult result = train();
  const bool is_told = result.end == RunEnd::kStopped || result.end == RunEnd::kEnded;
  if (is_told && parts_.training.clock.step < parts_.total_steps)
    parts_.hooks.break_off();
  else
    parts_.hooks.end();
  return result;
}

RunResult Run::train() {
  StepClock& clock = parts_.training.clock;
  if (clock.step >= parts_.total_steps)
    log_once("train", fmt::format("all {} steps are already done: nothing to train (choose another "
                                  "run.project_dir to train again)",
                                  clock.step));
  parts_.recorder.state(metrics::RunState::kTraining);
  const bool evaluates_first = parts_.evaluates_first && clock.step < parts_.total_steps;
  if (evaluates_first && !evaluate_now()) return stop_here();
  while (clock.step < parts_.total_steps && !parts_.patience.is_exhausted()) {
    const summary::DefaultWriter writer(
        parts_.hooks.summaries_at(coord::SummaryClock::train_step(clock.step + 1)));
    if (parts_.on_step) {
      // A save may still be copying the state, which the hook may change.
      parts_.saves.wait_until_staged();
      parts_.on_step(clock.step, parts_.training.model);
    }
    parts_.hooks.before_step(clock.step);
    const StepReport report = step();
    // The step did not happen: no hook sees it, and nothing is recorded.
    if (report.is_left_out) return stop(report);
    if (const std::optional<RunResult> end = after_step(report)) return *end;
  }
  return finish();
}

std::optional<RunResult> Run::after_step(const StepReport& report) {
  const int64_t step = parts_.training.clock.step;
  parts_.hooks.after_step({.iteration = report.step - 1,
                           .step = report.step,
                           .loss = report.loss,
                           .network_s = report.phases.forward + report.phases.backward,
                           .tensors = parts_.training.tensors,
                           .report = &report});
  last_eval_.reset();
  agenda_.owe(Agenda::kPublish);
  parts_.stop.note_step(step);
  count_signals();
  if (report.save_is_done) parts_.saves.settle();
  if (report.forward_wrote)
    written_ = fmt::format(" (parameters written in forward: {})",
                           report.written_param.empty() ? "on another rank" : report.written_param);
  // After a write in forward the ranks may have different values.
  agenda_.owe(Agenda::kCheck, report.forward_wrote || parts_.replica_check.is_due(step));
  if (agenda_.fall_due(Agenda::kCheck, report.ranks_agree)) agree(fmt::format("at step {}", step));
  // At the last step the run finishes, whatever stop requests there are.
  const bool is_last = step >= parts_.total_steps;
  // A rank that asks to save and stop keeps asking: after a skipped update the next one stops.
  const bool stops = report.must_end || (report.wants_stop && !report.skipped);
  // A stop at the last step has nothing left to stop; finish() saves.
  if (stops && !is_last) return stop(report);
  if (report.has_changes) make_changes();
  if (!save_and_evaluate(report, is_last)) return stop_here();
  if (report.wants_pause && !is_last) pause();
  return std::nullopt;
}

StepReport Run::step() {
  // A rank may have fewer micro-batches than another, so summaries in the network must not be
  // collective.
  const summary::DefaultWriter alone(summary::of_this_rank_alone());
  return parts_.trainer.step_asking([this] { return votes(); });
}

void Run::make_changes() {
  dist::Communicator& control = parts_.training.control;
  std::string text;
  for (const Change& change : parts_.stop.take_changes())
    text += change.key + "=" + change.value + "\n";
  for (const std::string& line : split(dist::broadcast_text(control, text))) {
    const size_t mark = line.find('=');
    const Change change{line.substr(0, mark), line.substr(mark + 1)};
    if (change.key == kEvalEpochsKey)
      parts_.eval.every_epochs = std::stoll(change.value);
    else if (change.key == kGraceKey)
      parts_.grace_s = std::stod(change.value);
    else if (change.key == kSaveStepsKey) {
      parts_.saves.set_every_steps(std::stoll(change.value));
      parts_.recorder.save_interval_steps(std::stoll(change.value));
    }
    if (parts_.change) parts_.change(change);
    if (change.key != kKillRankKey)
      log_once("control", fmt::format("{} from step {} on", line, parts_.training.clock.step));
  }
}

void Run::pause() {
  const trace::Span span("pause");
  dist::Communicator& control = parts_.training.control;
  const int64_t step = parts_.training.clock.step;
  parts_.training.reducer.settle();
  parts_.recorder.state(metrics::RunState::kPaused);
  log_once("control", fmt::format("paused after step {}", step));
  while (true) {
    const bool must_stop = is_asked_to_stop();
    // Read before the vote: requests made while ranks wait in it count for the next one.
    const int64_t num_saves_asked = parts_.stop.num_saves_asked();
    const bool wants_save = parts_.saves.enabled() && num_saves_asked > saves_seen_;
    at::Tensor asked_3 = at::zeros({3}, at::kLong);
    asked_3[0] = parts_.stop.pause_asked() ? 1 : 0;
    asked_3[1] = must_stop ? 1 : 0;
    asked_3[2] = wants_save ? 1 : 0;
    control.all_reduce(asked_3, dist::ReduceOp::kMax)->wait();
    saves_seen_ = num_saves_asked;
    if (asked_3[2].item<int64_t>() > 0 && parts_.saves.last_saved_step() != step)
      (void)parts_.saves.save_now();
    if (asked_3[0].item<int64_t>() == 0 || asked_3[1].item<int64_t>() > 0) break;
    // Also reports that this rank is alive, so that health checks stay green.
    parts_.recorder.state(metrics::RunState::kPaused);
    std::this_thread::sleep_for(kPauseTurn);
  }
  log_once("control", fmt::format("resumed after step {}", step));
  parts_.recorder.state(metrics::RunState::kTraining);
}

Votes Run::votes() {
  const int64_t num_saves_asked = parts_.stop.num_saves_asked();
  const bool is_rank_0 = parts_.training.control.rank() == 0;
  const double now_s = checkpoint::SaveSchedule::steady_seconds();
  const bool is_time =
      is_rank_0 && (!evaluated_at_s_ || now_s - *evaluated_at_s_ >= parts_.eval.eval_throttle_secs);
  const bool is_asked =
      parts_.saves.enabled() && num_saves_asked > std::exchange(saves_seen_, num_saves_asked);
  const bool interval_passed = is_rank_0 && parts_.eval_data != nullptr && parts_.eval.every_secs &&
                               now_s - trains_since_s_ >= *parts_.eval.every_secs;
  return {
      .save = is_asked || interval_passed || parts_.saves.due_here(parts_.training.clock.step + 1),
      .stop = parts_.stop.stop_asked(),
      .save_done = parts_.saves.done_here(),
      .end = parts_.stop.end_asked(),
      .evaluate = is_time,
      .pause = parts_.stop.pause_asked(),
      .change = parts_.stop.has_changes()};
}

/// Saves, then evaluates the saved state, as far as this step requests either.
bool Run::save_and_evaluate(const StepReport& report, bool is_last) {
  agenda_.owe(Agenda::kEvaluate, parts_.eval_data != nullptr && !is_last &&
                                     ends_eval_epoch(parts_.eval, parts_.training.clock));
  const bool waits_for_save = evaluates_saves() && agenda_.owes(Agenda::kEvaluate);
  agenda_.owe(Agenda::kSave, report.wants_save || waits_for_save);
  // A skipped update changed nothing, and saving it repeatedly would evict good checkpoints. The
  // save moves to the next step that counts and after which the ranks agree. While saves fail, it
  // also moves behind the last try, unless something waits for it.
  const bool may_save = parts_.saves.may_begin() || waits_for_save || is_last || report.wants_pause;
  const bool saves =
      agenda_.fall_due(Agenda::kSave, !report.skipped && report.ranks_agree && may_save);
  if (is_last) return true;  // finish() saves and evaluates
  bool evaluates = agenda_.fall_due(Agenda::kEvaluate, !evaluates_saves());
  if (saves) {
    parts_.training.reducer.settle();  // no save of weights that a lost rank left half updated
    if (starts_evaluation(report))
      evaluates = parts_.saves.save_now();
    else
      parts_.saves.begin();
  }
  if (!evaluates || evaluate_now()) return true;
  return report.skipped || !report.ranks_agree;  // this step cannot be saved: the next one stops
}

/// True if the save after this step must be evaluated.
bool Run::starts_evaluation(const StepReport& report) {
  if (agenda_.fall_due(Agenda::kEvaluate)) return true;
  if (!parts_.eval.on_save || parts_.eval_data == nullptr) return false;
  if (!report.may_evaluate) parts_.recorder.evaluation_skipped();
  return report.may_evaluate;
}

std::optional<EvalResult> Run::evaluate_now(bool ignores_stops) {
  const int64_t step = parts_.training.clock.step;
  parts_.training.reducer.settle();
  parts_.recorder.state(metrics::RunState::kValidating);
  evaluated_at_s_ = checkpoint::SaveSchedule::steady_seconds();
  reload();
  const EvalResult result = evaluate(
      parts_.handler, parts_.training.loss, *parts_.eval_data, parts_.eval, parts_.training.control,
      {.hooks = &parts_.eval_hooks,
       .step = step,
       .must_stop = [&] { return !ignores_stops && is_asked_to_stop(); },
       .loader = parts_.eval_loader});
  reload();
  trains_since_s_ = checkpoint::SaveSchedule::steady_seconds();
  parts_.recorder.state(metrics::RunState::kTraining);
  if (result.is_abandoned) {
    log_once("eval",
             fmt::format("the evaluation of step {} was interrupted: stop requested", step));
    return std::nullopt;
  }
  parts_.hooks.after_evaluation(step, result);
  parts_.saves.evaluated(result);
  (void)parts_.patience.add(number_of(result, parts_.patience.metric()));
  if (parts_.publish.after_evaluation) publish(result);
  last_eval_ = result;
  return result;
}

/// Reloads the checkpoint at a switch between training and evaluation.
void Run::reload() {
  if (!parts_.eval.strict_restore_on_switch) return;
  if (parts_.saves.last_saved_step() == parts_.training.clock.step) {
    parts_.reload(parts_.saves.last_commit());
  } else if (parts_.training.control.rank() == 0) {
    log::warning("eval", fmt::format("step {} is evaluated from memory: it was not saved",
                                     parts_.training.clock.step));
  }
}

/// Publishes this step's checkpoint, once.
void Run::publish(const std::optional<EvalResult>& result) {
  const int64_t step = parts_.training.clock.step;
  if (!agenda_.fall_due(Agenda::kPublish, parts_.saves.last_saved_step() == step)) return;
  const std::optional<double> loss = parts_.recorder.last_loss();
  parts_.exports->begin({.step = step,
                         .save = parts_.saves.last_commit(),
                         .train_loss = loss ? loss : parts_.loss_before,
                         .eval = result});
}

/// Compares the ranks' states. Diverged ranks must neither continue nor evict good checkpoints.
void Run::agree(const std::string& when) {
  parts_.training.reducer.settle();
  parts_.replica_check.require(when + written_);
  parts_.recorder.replica_check(parts_.replica_check);
}

/// True if a save is possible: a finite update, enough time, a folder. Rank 0's clock decides about
/// the time for all ranks.
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
    log::warning(
        "train",
        fmt::format(
            "ended at step {} without a save ({}): the last checkpoint is kept ({})", report.step,
            reason,
            parts_.saves.last_commit().empty() ? "there is none" : parts_.saves.last_commit()));
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
  // The save in progress may be that of this step; save again only if it is not.
  parts_.saves.settle();
  if (parts_.saves.last_saved_step() != report.step && !parts_.saves.save_now())
    throw Error(ExitCode::kIo, "train",
                "a save and stop was requested, but the save failed; see the log")
        .everywhere();
  count_signals();
  log_once(
      "train",
      fmt::format("stopped at step {} on request, saved {}; run the same command again to continue",
                  report.step, parts_.saves.last_commit()));
  parts_.training.recipe.finalize_stopped();
  return {RunEnd::kStopped, std::nullopt, parts_.saves.last_commit()};
}

RunResult Run::stop_here() {
  const bool wants_save = dist::any_of(parts_.training.control, parts_.stop.stop_asked());
  return stop({.step = parts_.training.clock.step, .wants_stop = wants_save});
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
  parts_.recorder.end_training();
  parts_.saves.settle();
  // All steps are done: only a later stop request aborts the rest.
  const bool ignores_stops = is_asked_to_stop();
  const recal::AppliedActions closing = parts_.trainer.close();
  parts_.recorder.closing(clock.step, closing,
                          parts_.training.flat_params.num_trainable_elements());
  // Before the final save: non-finite weights must not replace a good checkpoint.
  require_finite_weights(parts_.training.model, clock.step, parts_.saves.last_commit(),
                         parts_.training.control);
  RunResult result;
  if (clock.step < parts_.total_steps) {
    result.end = RunEnd::kStoppedEarly;
    log_once(
        "train",
        fmt::format(
            "ends at step {} of {}: the last {} evaluations did not improve {} (eval.patience)",
            clock.step, parts_.total_steps, parts_.patience.limit(), parts_.patience.metric()));
  }
  finish_saves(closing, &result);
  if (parts_.eval_data != nullptr) {
    result.eval = last_eval_ ? last_eval_ : evaluate_now(ignores_stops);
    if (!result.eval && result.end != RunEnd::kNotSaved) result.end = RunEnd::kStopped;
  }
  if (parts_.publish.at_end) publish(result.eval);
  parts_.saves.settle();
  if (parts_.exports != nullptr && !parts_.exports->settle() && result.end != RunEnd::kNotSaved)
    result.end = RunEnd::kNotExported;
  result.checkpoint = parts_.saves.last_commit();
  parts_.training.recipe.finalize(clock.step, parts_.training.control);
  count_signals();
  parts_.recorder.state(metrics::RunState::kFinished);
  parts_.recorder.flush();
  return result;
}

void Run::finish_saves(const recal::AppliedActions& closing, RunResult* result) {
  const int64_t step = parts_.training.clock.step;
  const bool is_new = closing.masks_changed || parts_.saves.last_saved_step() != step;
  const bool must_save = is_new && (parts_.save_at_end || agenda_.is_due(Agenda::kSave));
  const bool is_saved = must_save && parts_.saves.save_now();
  if (must_save && !is_saved) result->end = RunEnd::kNotSaved;
  const bool compares = parts_.training.control.world_size() > 1 && parts_.replica_check.is_on();
  if (is_new && !is_saved && compares)  // a save compares too
    agree(fmt::format("at the end, step {}", step));
  if (!closing.masks_changed) return;
  // Evaluation, export and checkpoint from before the closing have other masks.
  last_eval_.reset();
  is_saved ? agenda_.owe(Agenda::kPublish) : agenda_.drop(Agenda::kPublish);
}

void Run::log_once(const char* component, const std::string& text) const {
  if (parts_.training.control.rank() == 0) log::info(component, text);
}

}  // namespace lockstep::train
