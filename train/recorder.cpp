#include "train/recorder.h"

#include <cmath>

#include <fmt/format.h>

#include "base/log.h"

namespace lockstep::train {
namespace {

constexpr int64_t kWarmUpSteps = 10;

metrics::StepSample sample_of(const StepReport& report) {
  return {.step = report.step,
          .epoch = report.epoch,
          .num_samples = report.rank_samples,
          .duration_s = report.duration_s,
          .phases = report.phases,
          .bytes_reduced = report.bytes_reduced,
          .allreduce_exposed_s = report.phases.allreduce,
          .nonfinite = report.skipped,
          .learning_rate = report.learning_rate,
          .sparsity = report.sparsity,
          .loss = report.loss};
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
  metrics.set_parameter_counts(options.num_prunable_weights, 0);
  if (options.save_interval_s) metrics.set_checkpoint_interval(*options.save_interval_s);
  if (!options.is_root) return;
  const std::filesystem::path folder = options.project_dir / "train";
  steps_csv_.emplace(folder / "steps.csv", options.resumed_from_step.value_or(0));
  if (options.summary.tensorboard)
    events_.emplace(metrics::EventFileOptions{
        .folder = folder, .node = options.node, .resumed_step = options.resumed_from_step});
}

void Recorder::state(metrics::RunState state) {
  metrics_.set_state(state);
  health_.note_state(state);
  health_.note_turn();
}

void Recorder::step(const StepReport& report) {
  metrics_.record_step(sample_of(report));
  health_.note_step();
  last_loss_ = report.loss;
  global_samples_ += report.global_samples;
  if (++num_steps_ > kWarmUpSteps) {
    counted_samples_ += report.global_samples;
    counted_s_ += report.duration_s;
  }
  record_recipe(report);
  if (options_.is_root) write_curves(report);
}

void Recorder::record_recipe(const StepReport& report) {
  const recal::Timeline& timeline = recipe_.timeline();
  const recal::Timeline::Range due = timeline.due_at(report.step - 1);
  for (const recal::Action& action : due)
    metrics_.record_modifier_update(static_cast<size_t>(action.modifier));
  if (due.empty() && num_steps_ > 1) return;  // nothing of the below has changed
  for (const int modifier : options_.pruning_modifiers)
    if (const std::optional<double> target = timeline.target_sparsity_at(report.step - 1, modifier))
      metrics_.set_target_sparsity(static_cast<size_t>(modifier), *target);
  metrics_.set_parameter_counts(
      options_.num_prunable_weights,
      std::llround(report.sparsity * static_cast<double>(options_.num_prunable_weights)));
}

void Recorder::write_curves(const StepReport& report) {
  if (report.step % options_.summary.log_every == 0)
    steps_csv_->append(
        {report.step, report.epoch, report.loss, report.learning_rate, report.sparsity});
  if (events_ && report.step % options_.summary.save_summary_steps == 0) {
    const std::array<metrics::Scalar, 3> scalars{
        {{"loss/train", report.loss}, {"lr", report.learning_rate}, {"sparsity", report.sparsity}}};
    events_->add(report.step, scalars);
    metrics_.set_event_file_errors(events_->num_write_errors());
  }
  if (progress_.is_due()) {
    steps_csv_->flush();
    const std::string line = progress_.line({.step = report.step,
                                             .num_steps = options_.total_steps,
                                             .epoch = report.epoch,
                                             .loss = report.loss,
                                             .learning_rate = report.learning_rate,
                                             .sparsity = report.sparsity,
                                             .global_samples = global_samples_});
    log::info("train", options_.person_watches
                           ? metrics::with_bar(line, report.step, options_.total_steps)
                           : line);
  }
}

void Recorder::evaluation(int64_t step, const EvalResult& result) {
  metrics_.record_validation({.loss = result.loss, .accuracy = result.accuracy});
  if (!options_.is_root) return;
  log::info("eval", fmt::format("step {}: loss {:.4f}, accuracy {:.4f} over {} samples", step,
                                result.loss, result.accuracy, result.num_samples));
  if (!events_) return;
  const std::array<metrics::Scalar, 2> scalars{
      {{"loss/eval", result.loss}, {"accuracy/eval", result.accuracy}}};
  events_->add(step, scalars);
}

void Recorder::save(const metrics::SaveSample& sample) { metrics_.record_save(sample); }

void Recorder::flush() {
  if (steps_csv_) steps_csv_->flush();
  if (events_) events_->flush();
}

}  // namespace lockstep::train
