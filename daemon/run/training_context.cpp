#include "daemon/run/training_context.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "model/networks/model_table.h"
#include "recal/masks/mask_table.h"
#include "recal/schedule/param_choices.h"
#include "train/step/buffers.h"

// Listing of the data files, masks in checkpoints, and the parts of one rank.
namespace lockstep::daemon {
namespace {

std::string found_by(const data::DatasetPlan& plan) { return plan.find ? plan.find() : ""; }

/// Returns the number of elements of these parameters.
template <typename Wanted>
int64_t num_elements(const model::Model& model, const Wanted& is_wanted) {
  int64_t num = 0;
  for (const Param& param : model.params())
    if (is_wanted(param)) num += param.tensor.numel();
  return num;
}

}  // namespace

FoundData find_data(const data::DataOptions& options, dist::Communicator& control) {
  // Before the first access to an object store.
  files::set_store_limits(options.remote);
  // Only rank 0 lists files, so a shared file system or object store is asked once.
  FoundData found = dist::on_all_ranks(control, [&]() -> FoundData {
    if (control.rank() != 0) return {};
    return {found_by(options.train), options.eval ? found_by(*options.eval) : ""};
  });
  found.train = dist::broadcast_text(control, found.train);
  found.eval = dist::broadcast_text(control, found.eval);
  return found;
}

// The saver stores only kept elements of tensors with kept_bits. The bits must be saved under
// kept_key, from which a restore expands the tensor.

/// Returns the parameter A/B of the keys model/A/B, ema/A/B and optimizer/A/B/SLOT.
static std::string param_of(std::string_view key) {
  if (key.starts_with("model/")) return std::string(key.substr(6));
  if (key.starts_with("ema/")) return std::string(key.substr(4));
  if (!key.starts_with("optimizer/")) return "";
  key.remove_prefix(10);
  return std::string(key.substr(0, key.rfind('/')));
}

/// Sets StateEntry::kept_bits of each pruned weight in the list, and of its moments and moving
/// average, to its mask. The list must contain the entries of the masks.
static void set_kept_bits(const recal::MaskTable& masks, StateList* state) {
  std::set<std::string> saved;
  for (const StateEntry& entry : *state) saved.insert(entry.key);
  std::map<std::string, const recal::Mask*> by_param;
  // Without its mask in the checkpoint, a sparse tensor could not be restored.
  for (const recal::Mask& mask : masks.all())
    if (mask.num_pruned > 0 && saved.contains("_lockstep/masks/" + slashed(mask.name)))
      by_param[slashed(mask.name)] = &mask;
  for (StateEntry& entry : *state) {
    const auto mask = by_param.find(param_of(entry.key));
    if (mask == by_param.end() || entry.tensor.numel() != mask->second->weight.numel()) continue;
    if (!entry.tensor.is_floating_point()) continue;  // an update counter
    entry.kept_bits = mask->second->kept_bits;
    entry.kept_key = "_lockstep/masks/" + mask->first;
  }
}

// Builds the parts of a rank in the order of the members, each from those before it. The functions
// above the constructor compute one member's arguments each.

/// Returns the sampler's options. Throws Error(kBadData) for training data without samples.
static data::SamplerOptions sampler_options(const RunConfig& config, const data::Dataset& dataset,
                                            int world_size) {
  if (dataset.num_samples() == 0)
    throw Error(ExitCode::kBadData, "data", "data.train contains no samples").everywhere();
  return {.num_samples = dataset.num_samples(),
          .global_batch_size = config.data.global_batch(world_size),
          .seed = config.run.seed,
          .shuffle = config.data.shuffle && !dataset.is_sequential(),
          .drop_last = config.data.drop_last};
}

/// Returns the limit that the run file sets, if any.
static std::optional<int64_t> step_limit(const train::TrainOptions& options,
                                         int64_t steps_per_epoch) {
  std::optional<int64_t> limit = options.max_steps;
  if (options.max_epochs) {
    const int64_t steps = *options.max_epochs * steps_per_epoch;
    limit = std::min(limit.value_or(steps), steps);
  }
  return limit;
}

/// Returns the parameters outside the scopes, ascending; none without scopes.
static std::vector<int64_t> frozen_by(const NameScopes& trainable, const model::Model& model) {
  if (trainable.empty()) return {};
  std::vector<std::string> names;
  std::vector<int64_t> frozen;
  for (const Param& param : model.params()) {
    if (!trainable.cover(param.name)) frozen.push_back(static_cast<int64_t>(names.size()));
    names.push_back(param.name);
  }
  trainable.require_matches("train.trainable_scopes", names, model.frozen_params());
  return frozen;
}

static recal::TeacherChoice choice_of(const train::TeacherOptions& teacher) {
  if (teacher.is_disabled()) return recal::TeacherChoice::kDisabled;
  return teacher.is_given() ? recal::TeacherChoice::kGiven : recal::TeacherChoice::kNone;
}

/// Compiles the recipe for this model; all its faults are thrown as one error.
static recal::ScheduledModifierManager attached_recipe(const RunConfig& config,
                                                       const model::Model& model,
                                                       int64_t steps_per_epoch,
                                                       const dist::Communicator& control) {
  recal::ScheduledModifierManager manager(config.recipe);
  Diagnostics faults;
  manager.attach(model.params(),
                 {.steps_per_epoch = steps_per_epoch,
                  .base_learning_rate = config.optimizer.learning_rate,
                  .optimizer_type = config.optimizer.type,
                  .learning_rate_decay_type = config.optimizer.decay.type,
                  .layers = model.layers(),
                  .max_steps = step_limit(config.train, steps_per_epoch),
                  .frozen_at_start = frozen_by(config.train.trainable_scopes, model),
                  .frozen_in_constructor = model.frozen_params(),
                  .teacher = choice_of(config.train.teacher),
                  .rank = control.rank(),
                  .world_size = control.world_size(),
                  .planned_world_size = config.run.expect_world_size.value_or(1),
                  // Pruned weights have no gradients, so updates leave them at 0.
                  .updates_keep_zeros = true},
                 &faults);
  faults.throw_if_any("recipe");
  return manager;
}

/// Opens the evaluation data. They must have the same spec as the training data.
static std::unique_ptr<data::Dataset> eval_data_like(const data::Dataset& train,
                                                     const RunConfig& config,
                                                     const std::string& found) {
  if (!config.data.eval) return nullptr;
  const bool has_metrics = config.eval.metrics.has_value();  // metrics read the targets too
  std::unique_ptr<data::Dataset> eval =
      config.data.open_eval({.seed = config.run.seed,
                             .found = found,
                             .trained = train.spec(),
                             .use = data::DatasetUse::kEvaluation,
                             .own_loss = config.train.loss == "own" && !has_metrics});
  if (eval->spec() != train.spec())
    throw Error(ExitCode::kConfig, "data",
                fmt::format("data.eval has {}, data.train {}: they must be alike",
                            describe(eval->spec()), describe(train.spec())));
  return eval;
}

/// Returns a name in a checkpoint: blocks.0.conv.weight -> model/blocks/0/conv/weight.
static std::string model_key(const std::string& name) { return "model/" + slashed(name); }

/// Throws Error if two names become one key. Names of a network's own code may contain slashes,
/// which replace dots in checkpoints.
static void require_distinct_keys(const model::Model& model) {
  std::map<std::string, std::string> names;
  const auto add = [&](const std::string& name) {
    const auto [other, is_new] = names.emplace(model_key(name), name);
    if (!is_new)
      throw Error(
          ExitCode::kConfig, "model",
          fmt::format("the network's {} and {} are both {} in a checkpoint: rename one of them",
                      other->second, name, other->first));
  };
  for (const Param& param : model.params()) add(param.name);
  for (const model::Buffer& buffer : model.buffers()) add(buffer.name);
}

/// Builds the network and chooses how each parameter is updated.
static std::unique_ptr<model::Model> make_network(const RunConfig& config,
                                                  const data::SampleSpec& spec) {
  auto network = config.model.make({.input_shape = spec.input_shape,
                                    .num_classes = spec.num_classes,
                                    .seed = config.run.seed,
                                    .input_dtype = spec.input_dtype,
                                    .example = spec.example});
  require_distinct_keys(*network);
  recal::choose_decayed(config.optimizer.weight_decay_groups, config.optimizer.weight_decay_exclude,
                        &network->params());
  if (config.optimizer.type == "muon")
    recal::choose_matrices(config.optimizer.muon_params, &network->params());
  recal::choose_multipliers(config.optimizer.learning_rate_multipliers, &network->params());
  optim::choose_blocks(config.optimizer, &network->params());
  return network;
}

/// Builds the teacher, or null if the recipe does not distil. Its weights are read later.
static std::unique_ptr<train::Teacher> make_teacher(const RunConfig& config,
                                                    const data::SampleSpec& spec,
                                                    const recal::Timeline& timeline,
                                                    at::Device device) {
  if (!timeline.has(recal::ActionKind::kDistill)) return nullptr;
  const model::ModelOptions& options = config.train.teacher.model.value_or(config.model);
  return std::make_unique<train::Teacher>(options.make({.input_shape = spec.input_shape,
                                                        .num_classes = spec.num_classes,
                                                        .seed = config.run.seed,
                                                        .input_dtype = spec.input_dtype,
                                                        .example = spec.example,
                                                        .may_be_frozen = true}),
                                          device);
}

/// Returns the number of first targets of each row that the loss leaves out, as a language model
/// does that shifts its targets itself. Its outputs do not fit its targets place by place.
static int64_t num_unused_targets(const RunConfig& config, const model::Model& model,
                                  const data::SampleSpec& spec, bool logs) {
  if (spec.example.names.empty() || !spec.has_targets) return 0;
  const int64_t num_unused = model.num_unused_targets();
  if (num_unused == 0) return 0;
  if (config.train.loss == "own") {
    if (!config.eval.metrics) return num_unused;
    throw Error(ExitCode::kConfig, "eval",
                "eval.metrics cannot be combined with a network that shifts its targets itself: an "
                "output belongs to the next target; remove eval.metrics");
  }
  if (logs)
    log::warning("train",
                 fmt::format("the network's own loss shifts the targets, train.loss: {} does not: "
                             "shift them in the data set, or use train.loss: own",
                             config.train.loss));
  return 0;
}

/// Returns the saver's options, with time limits that fit each other.
static checkpoint::SaverOptions saver_options(const RunConfig& config, const std::string& prefix) {
  return {.prefix = prefix,
          .keep_checkpoint_max = config.checkpoint.keep_checkpoint_max,
          .keep_every = config.checkpoint.keep_every,
          .sparse = config.checkpoint.sparse,
          .compare_replicas = true,
          // Shorter than the wait of the other ranks for rank 0.
          .lock_patience_s =
              std::min(checkpoint::SaverOptions().lock_patience_s, config.checkpoint.timeout_s / 2),
          .stage_timeout_s = std::min(config.sync.timeout_s, config.checkpoint.timeout_s),
          .copies_folder = config.checkpoint.copies_folder(config.run.project())};
}

/// Refuses a run whose checkpoints would lack masks: after a resume, all pruned weights would grow
/// again.
static void require_whole_saves(const checkpoint::CheckpointOptions& saved,
                                recal::ScheduledModifierManager& recipe) {
  if (!saved.enabled || !saved.includes("clock") || saved.includes("modifiers") ||
      recipe.state().empty())
    return;
  throw Error(ExitCode::kConfig, "config",
              "checkpoint.include lacks modifiers, but the recipe prunes or quantizes: a run that "
              "continues from such a checkpoint would lose masks and ranges. Add modifiers, or "
              "remove clock to forbid resuming");
}

/// Refuses statistics of gradients where a rank does not have the mean gradients of all ranks.
static void require_whole_gradients(const RunConfig& config,
                                    const recal::ScheduledModifierManager& recipe) {
  if (!recipe.reads_gradients()) return;
  const auto refuse_if = [](bool is_wrong, std::string_view key, std::string_view way_out) {
    if (is_wrong)
      throw Error(ExitCode::kConfig, "sync",
                  fmt::format("{} cannot be combined with a recipe that prunes by gradients "
                              "(OBSPruningModifier, MFACPruningModifier, MovementPruningModifier): "
                              "every rank needs the mean gradients of each step; {}",
                              key, way_out));
  };
  refuse_if(!config.sync.sync_replicas, "sync.sync_replicas: false", "set it to true");
  refuse_if(config.sync.shard_optimizer, "sync.shard_optimizer", "set it to false");
}

static std::unique_ptr<train::StepMode> make_mode(const RunConfig& config,
                                                  dist::Communicator& control,
                                                  dist::Communicator& gradients) {
  if (config.run.is_elastic()) return std::make_unique<train::Elastic>(control);
  if (config.sync.sync_replicas || gradients.world_size() == 1)  // a single rank is its own mean
    return std::make_unique<train::Synchronous>(control);
  return std::make_unique<train::LocalSteps>(
      gradients, config.sync, /*statistics_of_root=*/config.train.batch_norm == "broadcast");
}

/// True if a rank, or one of its micro-batches, gets exactly one of `num_samples` samples.
static bool leaves_one_sample(int64_t num_samples, int64_t world_size, int64_t num_micro_batches) {
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const int64_t share = data::shard_of(num_samples, rank, world_size).size();
    // Micro-batches differ by at most one sample, so it is enough to check the first and the last.
    for (const int64_t part : {int64_t{0}, num_micro_batches - 1})
      if (data::shard_of(share, part, num_micro_batches).size() == 1) return true;
  }
  return false;
}

static void append(const StateList& part, StateList* all) {
  all->insert(all->end(), part.begin(), part.end());
}

void take_expected_world(RunConfig* config) {
  if (!config->data.batch_size_per_rank) return;
  const int64_t num_ranks = config->run.expect_world_size.value_or(1);
  config->data.global_batch_size = config->data.global_batch(static_cast<int>(num_ranks));
}

TrainingContext::TrainingContext(const RunConfig& config_, dist::Communicator& control_,
                                 dist::Communicator& data_comm, dist::Communicator& save_comm,
                                 const FoundData& found)
    : config(config_),
      control(control_),
      gradients(data_comm),
      train_data(config.data.open_train({.seed = config.run.seed,
                                         .found = found.train,
                                         .trained = found.trained,
                                         .own_loss = config.train.loss == "own"})),
      eval_data(eval_data_like(*train_data, config, found.eval)),
      spec(train_data->spec()),
      sampler(sampler_options(config, *train_data, control.world_size())),
      loader(train_data, sampler, control.rank(), control.world_size(),
             config.data.loader(*train_data, data_comm.device())),
      clock{.step = 0,
            .steps_per_epoch = found.steps_per_epoch.value_or(sampler.steps_per_epoch())},
      model(make_network(config, spec)),
      handler(*model, config.eval.use_ema.value_or(true) ? &ema : nullptr),
      loss(config.train.loss, config.train.loss_options, spec,
           num_unused_targets(config, *model, spec, control.rank() == 0)),
      // The layout before the recipe freezes anything.
      flat_params(
          model->params(),
          train::plan_layout(model->params(), std::vector<bool>(model->params().size(), true),
                             config.sync.bucket_bytes),
          data_comm.device()),
      mode(make_mode(config, control, data_comm)),
      alone(data_comm.device()),
      reducer(mode->is_local() ? alone : data_comm, flat_params.buffers(), model->params(),
              config.sync),
      optimizer(optim::make_optimizer(config.optimizer, flat_params.buffers(), model->params())),
      ema(config.optimizer.ema_decay, model->params()),
      loss_scale(config.train.loss_scale, config.train.precision == "fp16"),
      recipe(attached_recipe(config, *model, clock.steps_per_epoch, control)),
      teacher(make_teacher(config, spec, recipe.timeline(), data_comm.device())),
      facts{.seed = config.run.seed,
            .global_batch_size = config.data.global_batch(control.world_size()),
            .steps_per_epoch = clock.steps_per_epoch,
            .shuffle = config.data.shuffle ? 1 : 0,
            .num_classes = spec.num_classes,
            .input_shape = fmt::format("[{}]", fmt::join(spec.input_shape, ", ")),
            .class_names = text_of_classes(spec.class_names),
            .data_sha256 = train_data->digest(),
            .timeline = recipe.timeline().canonical_text(),
            .settings = fmt::format("{}", fmt::join(config.settings, "\n"))},
      place(host_name()),
      saver(saver_options(config, save_prefix()), save_comm),
      schedule(config.checkpoint, control) {
  // On a GPU the state is copied to pinned memory before it is written.
  saver.set_stager(data_comm.make_stager());
  require_whole_saves(config.checkpoint, recipe);
  if (teacher != nullptr) loss.require_distillable();
  if (spec.varies && config.run.is_elastic())
    throw Error(ExitCode::kConfig, "config",
                "run.deterministic: elastic cannot be combined with a data set that has a "
                "collate_fn: padding would depend on the number of ranks. Pad each sample to one "
                "length in __getitem__ and remove collate_fn, or use deterministic: true");
  // Throws if the metrics do not fit the data.
  (void)train::make_eval_metrics(config.eval, spec, !loss.is_own());
  if (eval_data) (void)train::num_eval_samples(config.eval, eval_data->num_samples());
  // Parameters are views of flat_params, which is on the device already; buffers are not.
  model->move_buffers_to(data_comm.device());
  model->batch_norms().set_frozen_with_params(!config.train.trainable_scopes.empty());
  // Fake quantization rounds inputs and weights in this hook.
  model->set_layer_hook(recipe.layer_hook());
  require_whole_gradients(config, recipe);
  // Quantization agrees on the ranges of inputs at every step, which local steps avoid.
  if (!config.sync.sync_replicas && recipe.quantizer() != nullptr)
    throw Error(ExitCode::kConfig, "sync",
                "sync.sync_replicas: false cannot be combined with a recipe that quantizes: ranges "
                "of inputs "
                "are agreed on at every step; set it to true");
}

std::string TrainingContext::save_prefix() const {
  return (config.checkpoint.folder(config.run.project()) / config.checkpoint.prefix).string();
}

bool TrainingContext::repeats_itself() const {
  const model::ModelType* type = model::model_types().find(config.model.type);
  return type != nullptr && type->repeats_itself;
}

/// Returns the reason against recorded passes; empty if none is known.
std::string TrainingContext::why_not_recorded(bool keeps_tensors) const {
  if (!repeats_itself() || !loss.repeats_itself())
    return "this network or loss does not declare that each pass does the same work "
           "(ModelType::repeats_itself, LossType::repeats_itself)";
  if (model->reads_forward_pass()) return "the network drops numbers at random";
  if (model->has_layer_hook()) return "the recipe quantizes";
  if (teacher != nullptr) return "the recipe distils";
  if (!config.sync.sync_replicas) return "ranks run local steps (sync.sync_replicas: false)";
  if (config.train.batch_norm == "sync" && !model->batch_norms().empty() &&
      gradients.world_size() > 1)
    return "batches are normalised over all ranks, by messages within a pass (train.batch_norm: "
           "sync)";
  if (keeps_tensors) return "a callback or hook reads tensors of the network";
  if (config.gpu.memory().at_start)
    return "the GPU's memory is allocated at the start (section gpu), and a recording needs its "
           "own";
  return "";
}

std::shared_ptr<DeviceGraph> TrainingContext::choose_graph(bool keeps_tensors) {
  const std::string& wanted = config.train.cuda_graphs;
  std::shared_ptr<DeviceGraph> graph = wanted == "off" ? nullptr : gradients.make_graph();
  if (graph == nullptr) return nullptr;
  const std::string why_not = why_not_recorded(keeps_tensors);
  // A recorded backward pass runs no hooks, so gradients cannot be sent during it.
  if (why_not.empty() && wanted == "on") reducer.send_after_backward();
  if (why_not.empty()) return graph;
  if (wanted == "on" && gradients.rank() == 0)
    log::warning("train", fmt::format("train.cuda_graphs: on has no effect, as {}", why_not));
  return nullptr;
}

train::TrainerParts TrainingContext::trainer_parts() {
  return {.control = control,
          .loader = loader,
          .model = *model,
          .flat_params = flat_params,
          .reducer = reducer,
          .optimizer = *optimizer,
          .optimizer_options = config.optimizer,
          .recipe = recipe,
          .loss = loss,
          .loss_scale = loss_scale,
          .ema = ema,
          .clock = clock,
          .mode = *mode,
          .total_steps = total_steps(),
          .bucket_bytes = config.sync.bucket_bytes,
          .max_skipped_samples = config.data.max_skipped,
          .teacher = teacher.get(),
          .teacher_is_copy = config.train.teacher.is_self(),
          .audit_every = config.run.audit_every,
          .place = place};
}

StateList TrainingContext::model_state() {
  StateList all;
  // A network's own code may write parameters in forward, while the saver still reads them.
  const bool is_steady = !model->runs_user_code();
  for (const Param& param : model->params())
    all.push_back(
        {.key = model_key(param.name), .tensor = param.tensor.detach(), .steady = is_steady});
  for (const model::Buffer& buffer : model->buffers())
    all.push_back({model_key(buffer.name), buffer.tensor, nullptr});
  append(ema.state(), &all);
  return all;
}

StateList TrainingContext::inference_state() {
  StateList all = model_state();
  if (config.checkpoint.includes("modifiers"))
    for (StateEntry& entry : recipe.state())
      // Statistics for pruning may be larger than the network.
      if (!entry.key.starts_with("_lockstep/pruning/")) all.push_back(std::move(entry));
  if (config.checkpoint.includes("clock"))
    all.push_back({"_lockstep/step", view_of(&clock.step), nullptr});
  return all;
}

StateList TrainingContext::learned_state() {
  const checkpoint::CheckpointOptions& saved = config.checkpoint;
  StateList all = model_state();
  if (saved.includes("optimizer")) {
    append(optimizer->state(), &all);
    append(loss_scale.state(), &all);
  }
  if (saved.includes("modifiers")) append(recipe.state(), &all);
  if (teacher != nullptr && config.train.teacher.is_self()) append(teacher->state(), &all);
  return all;
}

StateList TrainingContext::state() {
  const checkpoint::CheckpointOptions& saved = config.checkpoint;
  StateList all = learned_state();
  // Only a checkpoint with the masks may leave out pruned elements.
  if (saved.includes("modifiers") && saved.sparse) set_kept_bits(recipe.masks(), &all);
  append(facts.state(saved), &all);
  if (saved.includes("clock")) {
    append(sampler.state(), &all);
    append(reducer.state(), &all);
    all.push_back({"_lockstep/step", view_of(&clock.step), nullptr});
  }
  return all;
}

int64_t TrainingContext::total_steps() const {
  std::optional<int64_t> steps = recipe.total_steps();
  if (const std::optional<int64_t> limit = step_limit(config.train, clock.steps_per_epoch))
    steps = std::min(steps.value_or(*limit), *limit);
  if (!steps)
    throw Error(ExitCode::kConfig, "config",
                "the length of the training is unknown: the recipe has no end; add an "
                "!EpochRangeModifier, or set train.max_steps or train.max_epochs");
  return *steps;
}

std::string TrainingContext::batch_with_single_sample(int64_t world_size) const {
  const int64_t num_samples = train_data->num_samples();
  // The epoch's last batch counts only if the run reaches an epoch's end.
  const bool ends_epoch = !config.data.drop_last && total_steps() >= clock.steps_per_epoch;
  for (const int64_t batch :
       {facts.global_batch_size, ends_epoch ? num_samples % facts.global_batch_size : 0})
    if (leaves_one_sample(batch, world_size, config.train.replicas_to_aggregate))
      return fmt::format("a global batch of {} of {} samples leaves one sample to a rank of {}",
                         batch, num_samples, world_size);
  return "";
}

data::LoaderOptions TrainingContext::eval_loader() const {
  if (!eval_data) return {};
  return config.data.loader(*eval_data, gradients.device());
}

int64_t TrainingContext::num_parameters() const {
  return num_elements(*model, [](const Param&) { return true; });
}

int64_t TrainingContext::num_prunable_weights() const {
  return num_elements(*model, [](const Param& param) { return param.prunable; });
}

}  // namespace lockstep::daemon
