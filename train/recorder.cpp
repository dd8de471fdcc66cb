// Metrics are recorded on every rank; files, TensorBoard and progress lines exist on the root only.
#include "train/recorder.h"

#include <array>

#include <fmt/format.h>

#include "base/files/project.h"
#include "base/log.h"
#include "base/process.h"

namespace lockstep::train {
namespace {

// Steps that samples_per_second() leaves out.
constexpr int64_t kWarmUpSteps = 10;

metrics::StepSample sample_of(const StepReport& report) {
  return {.step = report.step,
          .epoch = report.epoch,
          .num_samples = report.rank_samples,
          .num_skipped_samples = report.rank_skipped,
          .num_records = report.rank_records,
          .num_record_bytes = report.rank_record_bytes,
          .num_queued_batches = report.queued_batches,
          .duration_s = report.duration_s,
          .phases = report.phases,
          .bytes_reduced = report.totals.bytes_reduced,
          .bytes_saved = report.totals.bytes_saved,
          .bytes_sent = report.totals.bytes_sent,
          .allreduce_s = report.totals.reduce_s,
          .allreduce_s_by_bucket = report.totals.bucket_s,
          .allreduce_overlapped_s = report.totals.overlapped_s,
          .bytes_gathered = report.gathered.bytes_gathered,
          .gather_s = report.gathered.gather_s,
          .allreduce_exposed_s = report.totals.wait_s,
          .is_straggler = report.is_straggler,
          .nonfinite = report.rank_skipped_update,
          .loss = report.has_loss ? std::optional(report.loss) : std::nullopt,
          .gradient_norm = report.gradient_norm,
          .loss_scale = report.scales_losses ? std::optional(static_cast<double>(report.loss_scale))
                                             : std::nullopt};
}

}  // namespace

Recorder::Recorder(const RecorderOptions& options, const recal::ScheduledModifierManager& recipe,
                   metrics::TrainingMetrics& metrics, metrics::Health& health)
    : options_(options),
      recipe_(recipe),
      metrics_(metrics),
      health_(health),
      progress_(options.is_root ? options.summary.progress_s : 0,
                options.resumed_from_step.value_or(0)) {
  metrics.recipe().set_epochs_planned(recipe.timeline().epoch_of(options.total_steps));
  if (options.save_interval_s) metrics.set_checkpoint_interval(*options.save_interval_s);
  if (options.save_interval_steps)
    metrics.set_checkpoint_interval_steps(*options.save_interval_steps);
  // Below: files, which only the root writes.
  if (!options.is_root) return;
  const std::filesystem::path folder = Project(options.project_dir).train();
  steps_csv_.emplace(folder / "steps.csv", options.resumed_from_step.value_or(0));
  if (options.line_before && options.line_before->step % options.summary.log_every == 0) {
    // A lost rank 0 may have ended between a step and its line.
    const std::optional<StepLine> written = last_step(folder / "steps.csv");
    if (!written || written->step < options.line_before->step)
      steps_csv_->append(*options.line_before);
  }
  evals_csv_.emplace(folder / "evals.csv", options.resumed_from_step.value_or(0));
  if (options.summary.tensorboard) summaries_.emplace(options_, recipe);
  if (options.launch)
    goodput_.emplace(Project(options.project_dir).goodput(), options.resumed_from_step.value_or(0),
                     *options.launch);
  if (goodput_) metrics_.set_run_time(goodput_->run_time());
}

Recorder::~Recorder() {
  if (options_.is_interactive) log::status("");
}

void Recorder::state(metrics::RunState state) {
  metrics_.set_state(state);
  health_.note_state(state);
  health_.note_turn();
  if (goodput_) goodput_->enter(state);
}

void Recorder::after_step(const IterationEnd& end) {
  // An evaluation has no report; it only proves that the process is alive.
  if (end.report == nullptr) {
    if (goodput_) goodput_->enter(metrics::RunState::kValidating);
    return health_.note_turn();
  }
  step(*end.report);
  if (!summaries_) return;
  summaries_->after_step(end);
  // Writer threads count failed writes; training never waits for the disk.
  metrics_.set_event_file_errors(summaries_->num_write_errors());
}

void Recorder::step(const StepReport& report) {
  if (report.has_loss) last_loss_ = report.loss;
  if (report.rank_skipped_update) ++num_skipped_;
  const metrics::StepSample sample = sample_of(report);
  metrics_.record_step(sample);
  if (goodput_) {
    goodput_->step(sample, report.late_s);
    metrics_.set_run_time(goodput_->run_time());
  }
  health_.note_step();
  global_samples_ += report.global_samples;
  busy_s_ += report.duration_s;
  data_s_ += report.phases.data;
  allreduce_s_ += report.phases.allreduce;
  // Durations contain no saves and evaluations, which are between steps.
  if (++num_steps_ > kWarmUpSteps) {
    counted_samples_ += report.global_samples;
    counted_s_ += report.duration_s;
  }
  record_rates(report);
  record_recipe(report);
  last_line_ = {report.step,     report.epoch,
                report.loss,     report.rates[kWeightGroup].learning_rate,
                report.sparsity, report.has_loss};
  if (options_.is_root) write_curves(report);
}

void Recorder::record_rates(const StepReport& report) {
  std::array<metrics::GroupSample, kNumParamGroups> groups;
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i] = {report.rates[i].learning_rate, report.rates[i].weight_decay};
  metrics_.recipe().set_rates(groups);
}

void Recorder::record_recipe(const StepReport& report) {
  metrics::RecipeMetrics& shown = metrics_.recipe();
  // The recipe counts since its start, the metric takes increments.
  shown.add_revived_weights(recipe_.num_revived() - revived_);
  revived_ = recipe_.num_revived();
  // After a resume, gauges must be set even without an action at this step.
  const bool is_first = num_steps_ == 1;
  if (is_first || !recipe_.timeline().due_at(report.step - 1).empty())
    record_due(report.step - 1, report.num_mask_updates, report.num_trainable);
  record_followed_formulas(report.step - 1);
}

/// Counts modifiers that set a rate by a formula at every step; only the first step is an action.
void Recorder::record_followed_formulas(int64_t step) {
  const recal::Timeline& timeline = recipe_.timeline();
  int counted = -1;  // both groups usually have the same modifier
  for (int group = 0; group < kNumParamGroups; ++group) {
    const recal::Action* setter = timeline.learning_rate_setter(step, group);
    if (setter == nullptr || setter->formula < 0 || setter->step == step) continue;
    const auto modifier = static_cast<size_t>(setter->modifier);
    const std::optional<int64_t> end = timeline.modifiers()[modifier].end_step;
    if (setter->modifier == std::exchange(counted, setter->modifier) || (end && step > *end))
      continue;
    metrics_.recipe().record_modifier_update(modifier);
  }
}

/// Records the timeline's actions before the update at `step`.
void Recorder::record_due(int64_t step, int64_t num_mask_updates, int64_t num_trainable) {
  metrics::RecipeMetrics& shown = metrics_.recipe();
  const recal::Timeline& timeline = recipe_.timeline();
  for (const recal::Action& action : timeline.due_at(step))
    shown.record_modifier_update(static_cast<size_t>(action.modifier));
  shown.add_mask_updates(num_mask_updates);
  for (const int modifier : options_.pruning_modifiers)
    if (const std::optional<double> target = timeline.target_sparsity_at(step, modifier))
      shown.set_target_sparsity(static_cast<size_t>(modifier), *target);
  for (const recal::Summary& layer : recipe_.layer_sparsities(options_.summary.per_layer))
    shown.set_layer_sparsity(layer.name, layer.value);
  if (recipe_.quantizer() != nullptr)
    shown.set_quantized_layers(recipe_.quantizer()->num_quantized());
  shown.set_parameter_counts({.num_parameters = options_.num_parameters,
                              .num_prunable = options_.num_prunable_weights,
                              .num_pruned = recipe_.masks().num_pruned(),
                              .num_trainable = num_trainable});
}

void Recorder::end_training() {
  if (summaries_) summaries_->end_training();
}

void Recorder::closing(int64_t step, const recal::AppliedActions& applied, int64_t num_trainable) {
  // No mask changed, so the last point is still true.
  if (applied.num_mask_updates == 0) return;
  record_due(step, applied.num_mask_updates, num_trainable);
  if (summaries_) summaries_->closing(step);
}

void Recorder::write_curves(const StepReport& report) {
  if (report.step % options_.summary.log_every == 0) steps_csv_->append(*last_line_);
  // A lost process keeps what the system has, not what is in its memory.
  if (options_.has_spares) steps_csv_->flush();
  tell_progress(report);
}

void Recorder::tell_progress(const StepReport& report) {
  const bool line_is_due = progress_.is_due();
  const bool bar_is_due = options_.is_interactive && progress_.bar_is_due();
  if (!line_is_due && !bar_is_due) return;
  const metrics::ProgressSample sample{.step = report.step,
                                       .num_steps = options_.total_steps,
                                       .epoch = report.epoch,
                                       .loss = last_loss_,
                                       .learning_rate = report.rates[kWeightGroup].learning_rate,
                                       .sparsity = report.sparsity,
                                       .busy_s = busy_s_,
                                       .data_s = data_s_,
                                       .allreduce_s = allreduce_s_,
                                       .resident_bytes = line_is_due ? resident_bytes() : 0,
                                       .global_samples = global_samples_};
  // The record must reach the step that the progress line reports.
  if (line_is_due) {
    steps_csv_->flush();
    const std::string line = progress_.line(sample);
    options_.is_interactive ? log::debug("train", line) : log::info("train", line);
  }
  if (bar_is_due) log::status(progress_.bar(sample));
}

void Recorder::after_evaluation(int64_t step, const EvalResult& result) {
  metrics_.record_validation(
      {result.loss, result.accuracy, numbers_of(result.metrics, kMaxShownClasses)});
  if (!options_.is_root) return;
  log::info("eval", fmt::format("step {}: {} ({:.3f} s)", step, text_of(result), result.seconds));
  evals_csv_->append(step, result);
  if (summaries_) summaries_->after_evaluation(step, result);
}

void Recorder::end_run(metrics::StartEnd end) {
  if (!goodput_) return;
  goodput_->end(end);
  metrics_.set_run_time(goodput_->run_time());
}

void Recorder::flush() {
  if (steps_csv_) steps_csv_->flush();
  if (summaries_) summaries_->flush();
}

}  // namespace lockstep::train
