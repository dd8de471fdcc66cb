#include "daemon/run/check.h"

#include <algorithm>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/store_commit.h"
#include "daemon/run/resume.h"
#include "daemon/run/run_hooks.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "infer/exports/export.h"
#include "infer/exports/model_publisher.h"
#include "metrics/http/http_server.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/timeline_views.h"
#include "recal/schedule/train_time.h"
#include "train/eval_options.h"
#include "train/step/buffers.h"
#include "train/step/share_weights.h"

// Dry run of a run file, and the commands that only read it.
namespace lockstep::daemon {

namespace {

constexpr int64_t kTriedSamples = 2;

/// Returns the first samples of a data set, at most `count`.
data::Samples first_samples(const data::Dataset& dataset, int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(std::min(count, dataset.num_samples())));
  std::iota(indices.begin(), indices.end(), 0);
  return dataset.get(indices, /*epoch=*/0);
}

/// Computes the loss of some samples as a training step does, but in float32 on the CPU.
void try_forward(TrainingContext& context, int64_t num_samples) {
  const data::Samples samples = first_samples(*context.train_data, num_samples);
  if (samples.targets_BY.size(0) == 0) return;  // all samples are damaged and skipped
  model::Model& model = *context.model;
  model.set_training(true);
  model.begin_forward({});
  const ForwardArguments arguments = data::arguments_of(samples, context.loss.is_own());
  at::Tensor outputs_BO;
  if (context.loss.is_own()) {
    outputs_BO = model.own_loss(arguments).outputs_BO;
  } else {
    outputs_BO = model.forward_of(arguments);
    (void)context.loss.sum(outputs_BO, samples.targets_BY);
  }
  if (context.teacher == nullptr) return;
  const at::Tensor teacher_BO = context.teacher->outputs(data::arguments_of(samples, false));
  (void)context.loss.distilled_sum(outputs_BO, teacher_BO, samples.targets_BY, /*temperature=*/1);
}

/// Cuts a batch, if the run will do so.
void try_to_cut(const TrainingContext& context) {
  if (context.config.train.replicas_to_aggregate == 1 && !context.config.run.is_elastic()) return;
  const data::Samples samples = first_samples(*context.train_data, kTriedSamples);
  if (samples.targets_BY.size(0) > 1) (void)data::part_of(samples, 0, 1);
}

/// Runs an evaluation of some samples. Layers of PyTorch may behave differently in it.
void try_evaluation(TrainingContext& context) {
  if (!context.eval_data) return;
  const data::Samples samples = first_samples(*context.eval_data, kTriedSamples);
  if (samples.targets_BY.size(0) == 0) return;
  model::Model& model = *context.model;
  const bool is_own = context.loss.is_own();
  const train::EvalMetrics metrics =
      train::make_eval_metrics(context.config.eval, context.eval_data->spec(), !is_own);
  const std::unique_ptr<train::Hook> callbacks = callback_hook(coord::Mode::kEval, context);
  model.set_training(false);
  const at::NoGradGuard no_grad;
  at::Tensor outputs_BO;
  if (is_own) outputs_BO = model.own_loss(data::arguments_of(samples, true)).outputs_BO;
  // As in evaluate(): outputs are computed only if something reads them.
  const bool reads_outputs = !metrics.empty() || (callbacks && callbacks->reads_tensors());
  if (!is_own || (reads_outputs && !outputs_BO.defined()))
    outputs_BO = model.forward_of(data::arguments_of(samples, /*with_targets=*/false));
  if (outputs_BO.defined()) outputs_BO = outputs_BO.to(at::kFloat);
  if (!is_own) {
    (void)context.loss.num_correct(outputs_BO, samples.targets_BY);
    (void)context.loss.sum(outputs_BO, samples.targets_BY);
  }
  const coord::DataMap data = train::metric_data(outputs_BO, samples.targets_BY);
  for (const train::EvalMetric& metric : metrics) (void)metric.sums(data);
}

/// Runs a step, including its checks of buffers that the network's own code changes.
void try_step(TrainingContext& context) {
  train::MovedBuffers moved(*context.model, context.control, context.config.train.batch_norm,
                            context.config.run.is_elastic());
  moved.begin_step();
  try_forward(context, kTriedSamples);
  moved.end_step(train::StepEnd::kUpdated, kTriedSamples);
  (void)context.model->buffers();  // a user's network reports its own faults here
}

/// Runs a batch of one sample, if such a batch will occur.
void try_single_sample(TrainingContext& context, int64_t world_size) {
  const std::string batch = context.batch_with_single_sample(world_size);
  if (batch.empty()) return;
  try {
    try_forward(context, 1);
  } catch (Error& fault) {
    fault.append(" (" + batch + ")");
    throw;
  }
}

/// Checks that ranks on one host can share one copy of the weights.
void try_to_share(TrainingContext& context, int64_t world_size) {
  if (world_size == 1) return;
  const dist::ProcessInfo process{};
  train::require_sharable({context.config.sync, *context.model, context.flat_params, context.recipe,
                           context.control, context.gradients, process,
                           /*has_users_hooks=*/!context.config.hooks.empty(),
                           /*may_write_weights=*/!context.repeats_itself()});
}

/// Refuses a run that would fail before its first update or at the end of its first epoch. It
/// checks:
///
///   - an export that the network has no form for,
///   - a warm start file that is missing or does not fit, and scopes that match nothing,
///   - a teacher that is missing or does not fit,
///   - targets that do not fit the outputs, in training or in evaluation,
///   - a last batch of one sample that the network cannot process,
///   - batches that cannot be cut into micro-batches or shards,
///   - metrics pages whose files are missing.
///
/// Trains nothing and writes no file. But it changes weights and buffers, so do not train with this
/// context afterwards.
///
/// Throws Error with the exit code of the first fault and the texts of all.
void dry_run(TrainingContext& context) {
  const RunConfig& config = context.config;
  const int64_t world_size = config.run.expect_world_size.value_or(1);
  // All faults become one error, with the first one's exit code.
  std::optional<Error> all;
  const auto add_from = [&all](const auto& check) {
    try {
      check();
    } catch (const Error& fault) {
      if (all)
        all->append(fmt::format("\n{}", fault.what()));
      else
        all = fault;
    }
  };
  add_from([&] { try_to_share(context, world_size); });
  add_from([&] {
    exports::require_publishable(*context.model, context.spec.input_shape, config.publish);
  });
  add_from([&] { load_teacher(context); });
  add_from([&] {  // an existing checkpoint of the run takes precedence, as in the run
    const auto saves = config.checkpoint.folder(config.run.project());
    if (config.checkpoint.enabled && files::is_remote(saves))
      checkpoint::require_store((saves / config.checkpoint.prefix).string(), /*rank=*/0);
    warm_start(context, config.checkpoint.enabled && checkpoint::latest_checkpoint(saves));
  });
  add_from([&] {  // the files that rank 0's pages need
    const auto listen = config.metrics.listen_for(0, 0, static_cast<int>(world_size));
    if (listen) metrics::check_http_options({.listen = *listen, .access = config.metrics.access});
  });
  add_from([&] {
    if (context.eval_data) (void)first_samples(*context.eval_data, kTriedSamples);
  });
  add_from([&] { try_to_cut(context); });
  add_from([&] {
    if (config.run.device == "cuda") return;  // the network's code may need the GPU
    try_step(context);
    try_single_sample(context, world_size);
    try_evaluation(context);
  });
  if (all) throw Error(*all);
}

/// Run file without faults, and what was built from it. `context` refers to the other members.
struct Checked {
  RunConfig config;
  std::optional<flags::Frozen> frozen;
  dist::SelfCommunicator alone;
  std::unique_ptr<TrainingContext> context;
};

/// Builds everything that a run builds before its first step, in a world of one rank.
std::unique_ptr<Checked> check_all(const std::string& config_file,
                                   const std::vector<Override>& overrides) {
  auto checked = std::make_unique<Checked>();
  checked->config = require_run_config(config_file, overrides);
  checked->frozen.emplace(checked->config.flag_texts);
  take_expected_world(&checked->config);
  const FoundData found = find_data(checked->config.data, checked->alone);
  checked->context = std::make_unique<TrainingContext>(checked->config, checked->alone,
                                                       checked->alone, checked->alone, found);
  // Builds the callbacks of both modes only to find their faults; they are dropped again.
  for (const coord::Mode mode : {coord::Mode::kTrain, coord::Mode::kEval})
    (void)callback_hook(mode, *checked->context);
  return checked;
}

void refuse_if(bool is_wrong, const std::string& message) {
  if (is_wrong) throw Error(ExitCode::kUsage, "plan", message);
}

/// Compiles a recipe without a run file: the data are unknown, so the user states the epoch's
/// length.
recal::Timeline timeline_of_bare_recipe(const PlanOptions& options) {
  constexpr int64_t kMost = recal::StepConverter::kMaxStepsPerEpoch;
  refuse_if(!options.steps_per_epoch, options.file + " is a bare recipe: give --steps-per-epoch N");
  refuse_if(
      *options.steps_per_epoch < 1 || *options.steps_per_epoch > kMost,
      fmt::format("--steps-per-epoch is {}, it must be 1 to {}", *options.steps_per_epoch, kMost));
  Diagnostics faults;
  const recal::Recipe recipe = recal::load_recipe(options.file, &faults, options.stage);
  faults.throw_if_any("recipe");
  const recal::Timeline timeline =
      recal::Timeline::compile(recipe,
                               {.steps_per_epoch = *options.steps_per_epoch,
                                // A learning rate that the recipe does not set is that of a default
                                // optimizer.
                                .base_learning_rate = optim::OptimizerOptions().learning_rate},
                               &faults);
  faults.throw_if_any("recipe");
  return timeline;
}

}  // namespace

CommandResult check_command(const std::string& config_file,
                            const std::vector<Override>& overrides) {
  const std::unique_ptr<Checked> checked = check_all(config_file, overrides);
  // A preset may ask for exports that this network has no form for: drop them as the run does.
  exports::leave_out_exports(*checked->context->model, &checked->config.publish,
                             &checked->config.notes);
  dry_run(*checked->context);
  const TrainingContext& context = *checked->context;
  std::string text = fmt::format(
      "{}: ok\n  run {} in {}: {} on {} training samples, {} steps an epoch, {} steps in all\n",
      config_file, checked->config.run.name, checked->config.run.project_dir,
      checked->config.model.type, context.train_data->num_samples(), context.clock.steps_per_epoch,
      context.total_steps());
  const auto add = [&](const char* word, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) text += fmt::format("  {}: {}\n", word, line);
  };
  context.model->set_training(false);  // as exports describe it
  add("exports", {exports::possible_exports(*context.model, context.spec.input_shape)});
  add("warning", checked->config.warnings);
  add("note", checked->config.notes);
  add("warning", context.recipe.timeline().warnings());
  add("note", context.recipe.timeline().notes());
  if (checked->config.data.batch_size_per_rank && !checked->config.run.expect_world_size)
    text +=
        "  note: counted for 1 rank; with data.batch_size_per_rank, steps depend on the world size "
        "(give run.expect_world_size)\n";
  return {text, 0};
}

void check_before_queue(const std::string& config_file, const std::vector<Override>& overrides) {
  (void)check_all(config_file, overrides);
}

/// Returns a line for the plan; empty without audits.
static std::string cost_of_audits(const RunOptions& run) {
  if (run.audit_every == 0) return "";
  return fmt::format("run.audit_every: one more forward and backward pass in {}, {:.3g} % of all\n",
                     run.audit_every == 1 ? "each step" : fmt::format("{} steps", run.audit_every),
                     100.0 / static_cast<double>(run.audit_every));
}

CommandResult plan_command(const PlanOptions& options) {
  std::unique_ptr<Checked> checked;
  // A recipe alone has no data and no network; a run file has both.
  const bool bare = recal::is_recipe(options.file);
  refuse_if(bare && !options.overrides.empty(),
            options.file + " is a bare recipe: it has no keys for --set");
  refuse_if(!bare && options.steps_per_epoch,
            options.file +
                " is a run file: its data define the steps of an epoch; remove --steps-per-epoch");
  refuse_if(!bare && !options.stage.empty(),
            options.file + " is a run file: it names its stage with recipe_stage");
  if (!bare) checked = check_all(options.file, options.overrides);
  const recal::Timeline timeline =
      bare ? timeline_of_bare_recipe(options) : checked->context->recipe.timeline();
  if (!options.svg_file.empty())
    files::write_atomically(
        options.svg_file,
        recal::plan_svg(timeline, bare ? options.file : checked->config.run.name));
  if (!options.csv_file.empty())
    files::write_atomically(options.csv_file, recal::plan_csv(timeline));
  if (!options.json_file.empty())
    files::write_atomically(options.json_file, recal::plan_json(timeline));
  const std::string audits = bare ? "" : cost_of_audits(checked->config.run);
  return {recal::plan_text(timeline) + audits + "\n" + recal::plot_text(timeline), 0};
}

/// True if the key repeats one of another section: the page names that section instead.
static bool repeats_another_section(const std::string& path) {
  const bool is_of_each_callback = path.ends_with(".type") || path.ends_with(".modes");
  return path.starts_with("data.eval.") || path.starts_with("inferer.callbacks.") ||
         (path.starts_with("train.teacher_model.") && path != "train.teacher_model.type") ||
         (path.starts_with("callbacks.") && is_of_each_callback &&
          !path.starts_with("callbacks.log."));
}

/// Type and range as the reference shows them: "integer >= 1", "number 0 to <1".
static std::string type_and_range(const FieldDoc& field) {
  std::string range = field.range;
  const std::string shared_bound = " and <= 1000000000";  // of all counts (count_from)
  if (range.ends_with(shared_bound)) range.resize(range.size() - shared_bound.size());
  const size_t upper = range.find(" and <= ");
  const size_t open_upper = range.find(" and < ");
  if (range.starts_with(">= ") && upper != std::string::npos)
    range = range.substr(3, upper - 3) + " to " + range.substr(upper + 8);
  else if (range.starts_with(">= ") && open_upper != std::string::npos)
    range = range.substr(3, open_upper - 3) + " to <" + range.substr(open_upper + 7);
  const std::string type = field.type == "true or false" ? "boolean" : field.type;
  return range.empty() ? type : type + " " + range;
}

std::string run_file_reference() {
  std::string text = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const FieldDoc& field : run_file_meanings())
    if (!repeats_another_section(field.path)) {
      const bool has_default = field.default_text != "none" || !field.choices.empty();
      text += fmt::format("| `{}` | {} | {} | {} |\n", field.path, type_and_range(field),
                          has_default ? field.default_text : "", field.help);
    }
  return text;
}

}  // namespace lockstep::daemon
