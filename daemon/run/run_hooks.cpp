#include "daemon/run/run_hooks.h"

#include <cstdlib>

#include <ATen/ops/ones.h>

#include "daemon/reports/job_status.h"
#include "train/evaluation/eval_options.h"
#include "train/hooks/profiler_hook.h"

// Order of the hooks: recorder, estimator's, callbacks, profiler, reports. The recorder is added
// last but placed first, since it is created after the others.
namespace lockstep::daemon {
namespace {

/// Returns the facts that every hook gets.
train::HookContext context_of(const TrainingContext& context, Telemetry& telemetry,
                              const dist::ProcessInfo& process) {
  return {.rank = process.rank,
          .world_size = process.world_size,
          .project_dir = context.config.run.project().folder(),
          .total_steps = context.total_steps(),
          .steps_per_epoch = context.clock.steps_per_epoch,
          .model = *context.model,
          .metrics = &telemetry.metrics()};
}

/// Returns the names in kpi.json and in an evaluation's result that are not KPIs. Callbacks must
/// not use them.
std::vector<std::string> figures_of_evaluations(const TrainingContext& context) {
  std::vector<std::string> names = {"global_step", "num_samples", "accuracy", "loss"};
  if (!context.eval_data) return names;
  for (const auto& metric : train::make_eval_metrics(context.config.eval, context.eval_data->spec(),
                                                     !context.loss.is_own()))
    for (const train::EvalValue& value :
         metric->values(at::ones({metric->num_sums()}, at::kDouble)))
      names.push_back(value.name);
  return names;
}

}  // namespace

std::unique_ptr<train::Hook> callback_hook(
    coord::Mode mode, const TrainingContext& context,
    const std::function<void(const std::string& name, double value)>& show_kpi) {
  const bool is_training = mode == coord::Mode::kTrain;
  return train::make_callback_hook(
      context.config.callbacks,
      {.mode = mode,
       .rank = context.control.rank(),
       .world_size = context.control.world_size(),
       .log_dir = context.config.run.project().callbacks(coord::mode_name(mode)),
       .has_outputs = !is_training || !context.loss.is_own(),
       .own_figures = is_training ? std::vector<std::string>() : figures_of_evaluations(context),
       .class_names = context.spec.class_names,
       .num_classes =
           context.spec.target_kind == data::TargetKind::kClass ? context.spec.num_classes : 0},
      context.control, show_kpi);
}

RunHooks::RunHooks(const TrainingContext& context, Telemetry& telemetry,
                   const dist::ProcessInfo& process)
    : context_(context),
      training_(context_of(context, telemetry, process)),
      evaluation_(context_of(context, telemetry, process)) {
  for (const train::MakeHook& make : context.config.hooks) add(make(), &training_);
  for (const coord::Mode mode : {coord::Mode::kTrain, coord::Mode::kEval})
    add(callback_hook(mode, context,
                      [this, mode](const std::string& name, double value) {
                        recorder_->kpi(mode, name, value);
                      }),
        mode == coord::Mode::kTrain ? &training_ : &evaluation_);
  if (context.config.profile)
    add(std::make_unique<train::ProfilerHook>(*context.config.profile, context.control,
                                              process.node, context.flat_params.device()),
        &training_);
  if (process.rank == 0) add(job_status_hook(context.total_steps(), std::getenv), &training_);
}

void RunHooks::add(std::unique_ptr<train::Hook> hook, train::Hooks* hooks) {
  if (hook == nullptr) return;
  hooks->add(*hook);
  owned_.push_back(std::move(hook));
}

void RunHooks::set_recorder(train::Recorder& recorder) {
  recorder_ = &recorder;
  training_.add_first(recorder);
  evaluation_.add_first(recorder);
  training_.set_summaries(summaries_of(coord::Mode::kTrain));
  evaluation_.set_summaries(summaries_of(coord::Mode::kEval));
}

/// Returns the options of the summary writer. In evaluations, ranks have different numbers of
/// batches, so a collective mean is not possible.
summary::DefaultWriterOptions RunHooks::summaries_of(coord::Mode mode) {
  summary::DefaultWriterOptions made{
      .policy = {.every_n_steps = context_.config.summary.every_n_steps()},
      .world_size = context_.control.world_size()};
  if (recorder_->summaries() != nullptr) made.file = &recorder_->summaries()->writer(mode);
  if (mode == coord::Mode::kTrain)
    made.mean_over_ranks = [&control = context_.control](double value) {
      train::services_over(control).sum_over_ranks({&value, 1});
      return value / control.world_size();
    };
  return made;
}

}  // namespace lockstep::daemon
