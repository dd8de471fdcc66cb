#include "cli/evaluator_job.h"

#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/digest.h"
#include "base/files/files.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "checkpoint/tools/inspect.h"
#include "daemon/run/device.h"
#include "daemon/run/run_hooks.h"
#include "recal/masks/mask_table.h"
#include "recal/masks/mask_update.h"
#include "train/records.h"
#include "train/summary_saver_hook.h"

// The job builds the same TrainingContext as a run, but in a world of one rank. Then it restores
// each checkpoint into that context and evaluates it.
namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

daemon::RunConfig load_for_evaluation(const EvalCommandOptions& options) {
  daemon::RunConfig config =
      daemon::require_run_config(options.config_file, daemon::overrides_of(options.above),
                                 /*text=*/{}, /*needs_train_data=*/false);
  if (!config.data.eval)
    throw Error(
        ExitCode::kConfig, "eval",
        fmt::format("{}: 'data.eval' is missing: no data to evaluate", options.config_file));
  daemon::take_expected_world(&config);
  return config;
}

/// Reads facts about the training data from the run's checkpoints; nullopt if none contains them.
std::optional<daemon::CheckpointMetadata> saved_facts(const daemon::RunConfig& config,
                                                      const std::string& restored) {
  std::string prefix = restored;
  if (restored == "latest") {
    const auto newest = checkpoint::latest_checkpoint(
        config.checkpoint.folder(config.run.project()), config.checkpoint.prefix);
    if (!newest) return std::nullopt;
    prefix = *newest;
  }
  daemon::CheckpointMetadata facts;
  try {
    checkpoint::restore(
        checkpoint::save_at(prefix),
        {{"_lockstep/sampler/steps_per_epoch", view_of(&facts.steps_per_epoch)},
         {.key = "_lockstep/data/num_classes",
          .tensor = view_of(&facts.num_classes),
          .value_if_missing = 0},
         {.key = "_lockstep/data/class_names", .text = &facts.class_names, .value_if_missing = 0}});
    // A damaged or foreign checkpoint just has no facts; evaluate() reports its faults.
  } catch (const Error&) {
    return std::nullopt;
  }
  return facts.steps_per_epoch > 0 ? std::optional(facts) : std::nullopt;
}

/// Throws Error if the classes changed since training. The training data number the classes, so
/// renamed or added folders would give outputs the wrong names.
void require_saved_classes(const std::vector<std::string>& found,
                           const std::optional<daemon::CheckpointMetadata>& saved) {
  const std::string now = daemon::text_of_classes(found);
  if (!saved || saved->class_names.empty() || saved->class_names == now) return;
  throw Error(
      ExitCode::kConfig, "eval",
      fmt::format(
          "data.train has the classes {} and the checkpoint was trained with {}: name the folder "
          "of its training, or remove data.train, as the checkpoint contains the names",
          now, saved->class_names));
}

/// Hook that calls a function before each batch.
class OnBatch final : public train::Hook {
 public:
  explicit OnBatch(const std::function<void()>& call) : call_(call) {}
  void before_step(int64_t /*step*/) override {
    if (call_) call_();
  }

 private:
  const std::function<void()>& call_;
};

}  // namespace

void require_one_process(const char* command, const char* why) {
  const dist::ProcessInfo process = dist::read_process_info();
  if (process.world_size > 1)
    throw Error(ExitCode::kUsage, command,
                fmt::format("was started {} times by {}: {}; start it without a launcher",
                            process.world_size, process.launcher, why));
}

std::optional<std::string> index_sha256(const std::string& prefix) {
  try {
    return sha256_hex(files::read(checkpoint::index_path(prefix)));
  } catch (const Error& fault) {
    if (fault.code() == ExitCode::kInputMissing) return std::nullopt;
    throw;
  }
}

EvaluatorJob::EvaluatorJob(const EvalCommandOptions& options)
    : config_(load_for_evaluation(options)), frozen_(config_.flag_texts) {
  // Not a session of its own: points of the run's other processes must stay visible.
  if (config_.summary.tensorboard)
    curves_.emplace(metrics::EventFileOptions{.folder = config_.run.project().evaluator(),
                                              .node = dist::read_process_info().node,
                                              .is_session = false,
                                              .flush_s = config_.summary.flush_s});
  device_comm_ =
      std::make_unique<dist::SelfCommunicator>(daemon::set_up_alone(config_.run, config_.gpu));
  open(options.restore);
  callbacks_ = daemon::callback_hook(coord::Mode::kEval, *context_);
}

void EvaluatorJob::open(const std::string& restored) {
  try {
    if (!config_.data.train.make)
      throw Error(ExitCode::kInputMissing, "eval",
                  "'data.train' is not given, and no checkpoint of the run contains the length of "
                  "an epoch");
    const daemon::FoundData found = daemon::find_data(config_.data, control_);
    context_ = std::make_unique<daemon::TrainingContext>(config_, control_, *device_comm_, control_,
                                                         found);
    require_saved_classes(context_->spec.class_names, saved_facts(config_, restored));
    // Only missing files lead to the evaluation without training data.
  } catch (const Error& missing) {
    if (missing.code() != ExitCode::kInputMissing) throw;
    open_without_training_data(restored, missing);
  }
}

/// Uses the evaluation data in place of missing training data. A checkpoint provides the epoch's
/// length, which recipes may need, and the class names.
void EvaluatorJob::open_without_training_data(const std::string& restored, const Error& missing) {
  const std::optional<daemon::CheckpointMetadata> facts = saved_facts(config_, restored);
  if (!facts) throw Error(missing);
  // Keep this before the next line overwrites data.train.
  const bool is_named = static_cast<bool>(config_.data.train.make);
  config_.data.train = *config_.data.eval;
  config_.data.drop_last = false;
  daemon::FoundData found = daemon::find_data(config_.data, control_);
  found.steps_per_epoch = facts->steps_per_epoch;
  found.trained = {.num_classes = facts->num_classes,
                   .class_names = daemon::classes_of_text(facts->class_names)};
  context_ =
      std::make_unique<daemon::TrainingContext>(config_, control_, *device_comm_, control_, found);
  if (is_named)
    log::warning(
        "eval", fmt::format("data.train cannot be opened, so data.eval is not compared with it: {}",
                            missing.what()));
}

std::string EvaluatorJob::settings_sha256() const {
  std::string lines;
  for (const std::string& line : config_.settings)
    if (line.starts_with("data.") || line.starts_with("eval.") || line.starts_with("run.seed"))
      lines += line + "\n";
  return sha256_hex(lines);
}

void EvaluatorJob::restore(const std::string& prefix) {
  StateList wanted = context_->inference_state();
  // The initial value is the default if the checkpoint does not contain it.
  int64_t global_batch_size = context_->facts.global_batch_size;
  wanted.push_back({.key = "_lockstep/sampler/global_batch_size",
                    .tensor = view_of(&global_batch_size),
                    .value_if_missing = static_cast<double>(global_batch_size)});
  const auto report = checkpoint::restore(prefix, wanted);
  if (curves_)
    curves_->set_axis_units_per_step(config_.summary.axis_units_per_step(global_batch_size));
  step_ = report.number >= 0 ? report.number : context_->clock.step;
  context_->recipe.restored(control_);
  (void)context_->ema.begin();  // without an average in the checkpoint, its weights are evaluated
}

std::optional<std::string> EvaluatorJob::evaluate(const std::string& prefix,
                                                  const std::function<void()>& on_batch) {
  // The digest before and after reading detects a checkpoint that was replaced meanwhile.
  const std::optional<std::string> before = index_sha256(prefix);
  try {
    restore(prefix);
  } catch (const Error&) {
    // An unchanged checkpoint that cannot be restored is damaged.
    if (before && index_sha256(prefix) == before) throw;
    return std::nullopt;
  }
  if (index_sha256(prefix) != before) return std::nullopt;
  const train::EvalResult result = evaluate_restored(on_batch);
  return write(prefix, before.value_or(""), result);
}

train::EvalResult EvaluatorJob::evaluate_restored(const std::function<void()>& on_batch) {
  train::Hooks hooks({.project_dir = config_.run.project().folder(),
                      .steps_per_epoch = context_->clock.steps_per_epoch,
                      .model = *context_->model});
  OnBatch calls(on_batch);
  hooks.add(calls);
  if (callbacks_ != nullptr) hooks.add(*callbacks_);
  hooks.set_summaries({.file = curves_ ? &*curves_ : nullptr,
                       .policy = {.every_n_steps = config_.summary.every_n_steps()}});
  train::EvalResult result = train::evaluate(
      context_->handler, context_->loss, *context_->eval_data, config_.eval, control_,
      {.hooks = &hooks, .step = step_, .loader = context_->eval_loader()});
  if (curves_) {
    train::add_evaluation(&*curves_, step_, result);
    curves_->flush();
  }
  return result;
}

double EvaluatorJob::loss_of_restored(const std::function<void()>& on_batch) {
  train::Hooks hooks({.project_dir = config_.run.project().folder(),
                      .steps_per_epoch = context_->clock.steps_per_epoch,
                      .model = *context_->model});
  OnBatch calls(on_batch);
  hooks.add(calls);
  return train::evaluate(context_->handler, context_->loss, *context_->eval_data, config_.eval,
                         control_,
                         {.hooks = &hooks, .step = step_, .loader = context_->eval_loader()})
      .loss;
}

EvaluatorJob::Sensitivity EvaluatorJob::sensitivity(const std::string& prefix,
                                                    const std::vector<double>& levels,
                                                    const std::function<void()>& on_batch) {
  restore(prefix);
  const at::NoGradGuard no_grad;
  Sensitivity all{.step = step_, .loss = loss_of_restored(on_batch)};
  const ParamTable& params = context_->model->params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].prunable) continue;
    const at::Tensor weight = context_->evaluates_ema() ? context_->ema.of(static_cast<int64_t>(i))
                                                        : params[i].tensor.detach();
    const at::Tensor before = weight.cpu().contiguous().clone();
    PrunedAlone& alone = all.weights.emplace_back(
        PrunedAlone{.name = params[i].name, .num_weights = weight.numel()});
    alone.sparsity = before.eq(0).to(at::kDouble).mean().item<double>();
    for (const double level : levels) {
      const recal::MaskedWeight pruned{params[i].name, before,
                                       recal::new_kept_bits(before.numel())};
      recal::update_masks(std::span(&pruned, 1), level, {});
      weight.copy_(before * recal::kept_flags(pruned.kept_bits, before.sizes()));
      alone.losses.push_back(loss_of_restored(on_batch));
    }
    weight.copy_(before);
  }
  return all;
}

std::string EvaluatorJob::write(const std::string& prefix, const std::string& index_sha256,
                                const train::EvalResult& result) {
  const std::filesystem::path path = results_folder() / fmt::format("step-{}.json", step_);
  Json json{{"global_step", step_},
            {"checkpoint", prefix},
            {"index_sha256", index_sha256},
            {"settings_sha256", settings_sha256()},
            {"parameters_sha256", train::parameters_sha256(context_->model->params())},
            {"ema", context_->evaluates_ema()}};
  if (context_->evaluates_ema())
    json["evaluated_sha256"] = train::parameters_sha256(context_->ema.params());
  json.update(Json::parse(train::eval_json(result)));
  files::make_folders(results_folder());
  files::write_atomically(path, json_text(json, 2) + "\n");
  return fmt::format("step {}: {} ({})", step_, train::text_of(result), path.string());
}

}  // namespace lockstep::cli
