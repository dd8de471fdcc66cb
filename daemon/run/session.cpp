#include "daemon/run/session.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files/files.h"
#include "base/log.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "daemon/config/checkpoint_metadata.h"
#include "daemon/control/requests.h"
#include "daemon/control/settable.h"
#include "daemon/control/signals.h"
#include "daemon/control/watchdog.h"
#include "daemon/run/device.h"
#include "daemon/run/run_end.h"
#include "daemon/run/run_hooks.h"
#include "daemon/run/run_start.h"
#include "daemon/run/telemetry.h"
#include "daemon/run/training_context.h"
#include "dist/nccl/load_nccl.h"
#include "infer/exports/model_publisher.h"
#include "train/past_evaluations.h"
#include "train/step/share_weights.h"
#include "train/weight_checks.h"

// One training run: run_session() at the end builds all parts in the order of
// docs/design/architecture.md, trains and ends the run. The helpers above it build one part each.
// Each part that may fail on a single rank is built inside dist::on_all_ranks(), so that all ranks
// fail alike.
namespace lockstep::daemon {
namespace {

/// Returns the content of the run file, unless it is read when it is needed. A run that may
/// continue in another session reads it once.
std::optional<std::string> text_of_run(const SessionOptions& options, const SessionWorld& world) {
  if (options.memory != nullptr) return config_text_of(*options.memory, world.control);
  if (!world.can_replace || options.config_text || options.config_file.empty())
    return options.config_text;
  return dist::on_all_ranks(world.control, [&] { return files::read(options.config_file); });
}

/// Reads the run file on all ranks. Checks that ranks and programs fit.
RunConfig load(const SessionOptions& options, const std::optional<std::string>& text,
               const SessionWorld& world) {
  RunConfig config = dist::on_all_ranks(world.control, [&] {
    return require_run_config(options.config_file, options.overrides,
                              options.config_file.empty() ? std::nullopt : text);
  });
  check_equal_programs(config, world.mpi_version, world.control);
  check_world_size(config.run, world.process);
  return config;
}

/// Chooses the settings that the run file leaves open for this world.
void fit_to_world(at::Device device, const SessionWorld& world, RunConfig* config) {
  dist::fit_bucket_bytes({.on_gpu = device.is_cuda(),
                          .num_hosts = world.process.num_nodes,
                          .num_ranks = world.process.world_size,
                          .prunes = config->recipe.prunes()},
                         &config->sync);
  // The only copy of the weights would be lost with the rank that was updating it.
  if (world.can_replace && config->sync.share_weights == "auto") config->sync.share_weights = "off";
}

/// Returns the processor's name as Linux knows it; empty if it tells none.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 1);
  return "";
}

/// Sets up this rank's GPU, if it uses one, and returns its facts. With audits, throws
/// Error(kDisagree).everywhere() if the ranks have different processors or numbers of threads. They
/// would find differences that are no faults. Collective.
std::optional<metrics::GpuFacts> set_up_processor(const RunConfig& config, const at::Device& device,
                                                  dist::Communicator& control) {
  const std::optional<metrics::GpuFacts> gpu = set_up_gpu(config.gpu, device, control);
  if (config.run.audit_every == 0) return gpu;
  dist::require_equal(
      control, "processor (run.audit_every compares bits)",
      fmt::format("{} threads,{}, {}, {} bytes of GPU memory", at::get_num_threads(),
                  processor_name(), at::get_cpu_capability(), gpu ? gpu->memory_bytes : 0));
  return gpu;
}

/// Creates the communicator of the step's reduction: NCCL on GPUs, MPI on CPUs.
/// sync.check_collectives adds a second one that compares the calls of all ranks.
std::unique_ptr<dist::Communicator> make_gradient_communicator(const dist::SyncOptions& sync,
                                                               const at::Device& device,
                                                               dist::Communicator& control,
                                                               const SessionWorld& world) {
  std::unique_ptr<dist::Communicator> gradients =
      device.is_cuda() ? dist::make_nccl_communicator(control, device.index(), sync.timeout_s)
                       : world.make_cpu_communicator(sync);
  if (sync.check_collectives)
    gradients = std::make_unique<dist::CheckedCommunicator>(std::move(gradients),
                                                            world.make_cpu_communicator(sync));
  return gradients;
}

/// Returns null if there is no other rank.
std::unique_ptr<StopNotice> make_stop_notice(const SessionWorld& world, Requests& requests,
                                             const metrics::Health& health) {
  if (world.process.world_size == 1) return nullptr;
  return std::make_unique<StopNotice>(world.make_notice(), requests, [&health] {
    return health.state() == metrics::RunState::kTraining;
  });
}

/// Creates the communicator of saves, with their time limit.
std::unique_ptr<dist::Communicator> make_save_communicator(const RunConfig& config,
                                                           const SessionWorld& world) {
  dist::SyncOptions sync = config.sync;
  sync.timeout_s = config.checkpoint.timeout_s;
  return world.make_cpu_communicator(sync);
}

/// Builds the context. `config` must outlive it. Exports that the network cannot have are removed
/// from it.
std::unique_ptr<TrainingContext> make_context(RunConfig* config,
                                              const std::optional<metrics::GpuFacts>& gpu,
                                              dist::Communicator& control,
                                              dist::Communicator& gradients,
                                              dist::Communicator& saves) {
  const FoundData found = find_data(config->data, control);
  return dist::on_all_ranks(control, [&] {
    auto context = std::make_unique<TrainingContext>(*config, control, gradients, saves, found);
    if (gpu) context->place += ", GPU " + (gpu->id.empty() ? gpu->name : gpu->id);
    exports::leave_out_exports(*context->model, &config->publish, &config->notes);
    exports::require_publishable(*context->model, context->spec.input_shape, config->publish);
    return context;
  });
}

/// Warns of batches with a single sample. PyTorch's batch normalisation, which a network in Python
/// or TorchScript may use, refuses a single value per channel. Only a forward pass would tell if it
/// gets more.
void warn_of_single_samples(const TrainingContext& context, int world_size) {
  if (!context.model->runs_user_code()) return;
  const std::vector<model::Buffer>& buffers = context.model->buffers();
  if (std::none_of(buffers.begin(), buffers.end(),
                   [](const model::Buffer& one) { return one.name.ends_with("running_mean"); }))
    return;
  const std::string batch = context.batch_with_single_sample(world_size);
  if (!batch.empty())
    log::warning("data", batch +
                             ", which batch normalisation may reject: set data.drop_last: true or "
                             "another data.global_batch_size");
}

/// Logs which parameters Muon updates as matrices.
void tell_matrices(const ParamTable& params) {
  std::vector<std::string> matrices, others;
  for (const Param& param : params) (param.is_matrix ? matrices : others).push_back(param.name);
  if (matrices.empty()) return;
  log::info("optimizer", fmt::format("muon updates {} matrices, adamw {} other parameters: {}",
                                     matrices.size(), others.size(), fmt::join(others, ", ")));
}

/// Ends this process as a lost one ends, if the change says so. Its log is written before.
void end_if_asked(const Change& change, int rank) {
  if (change.key != kKillRankKey || change.value != std::to_string(rank)) return;
  log::warning("control", fmt::format("rank {} is killed, as `lockstep ctl` asked", rank));
  static_cast<void>(log::flush(1.0));
  ::raise(SIGKILL);
}

/// Logs the parameters with a learning rate of their own, by multiplier.
void tell_multipliers(const ParamTable& params) {
  std::map<double, std::vector<std::string>> names;
  for (const Param& param : params)
    if (param.rate_multiplier != 1) names[param.rate_multiplier].push_back(param.name);
  for (const auto& [multiplier, of_it] : names)
    log::info("optimizer", fmt::format("learning rate times {} for {} parameters: {}", multiplier,
                                       of_it.size(), fmt::join(of_it, ", ")));
}

/// Writes settings.txt. A failure is only a warning, since training does not need it.
void keep_settings(const RunConfig& config) {
  try {
    files::write_atomically(config.run.project().settings(),
                            fmt::format("{}\n", fmt::join(config.settings, "\n")));
  } catch (const Error& fault) {
    log::warning("config", fault.what());
  }
}

/// Logs the run's facts, settings, warnings and notes, and keeps the settings, on rank 0.
void announce(const TrainingContext& context, const dist::ProcessInfo& process,
              const std::optional<Resumed>& resumed) {
  if (process.rank != 0) return;
  if (resumed)  // logged before the log file was open; here for its readers
    log::debug("resume", fmt::format("resumed from step {} ({})", resumed->step, resumed->prefix));
  log::info(
      "start",
      fmt::format(
          "run {}: {} with {} parameters in {} bucket(s), {} training samples, {} steps an epoch, "
          "{} steps in all, {} rank(s) on {} host(s)",
          context.config.run.name, context.config.model.type, context.num_parameters(),
          context.flat_params.num_buffers(), context.train_data->num_samples(),
          context.clock.steps_per_epoch, context.total_steps(), process.world_size,
          process.num_nodes));
  log::info("config", fmt::format("{}, with settings of the command line and the environment; all "
                                  "other keys have their defaults:",
                                  context.config.file.empty() ? "flags" : context.config.file));
  for (const std::string& line : settings_by_section(context.config.settings))
    log::info("config", "  " + line);
  keep_settings(context.config);
  for (const std::string& warning : context.config.warnings) log::warning("config", warning);
  warn_of_single_samples(context, process.world_size);
  for (const std::string& note : context.config.notes) log::info("config", note);
  tell_matrices(context.model->params());
  tell_multipliers(context.model->params());
  for (const std::string& warning : context.recipe.timeline().warnings())
    log::warning("recipe", warning);
  for (const std::string& note : context.recipe.timeline().notes()) log::info("recipe", note);
}

/// Returns the indexes of modifiers with a target sparsity.
std::vector<int> pruning_modifiers(const recal::Timeline& timeline) {
  std::vector<int> places;
  for (int i = 0; i < static_cast<int>(timeline.modifiers().size()); ++i)
    if (timeline.target_sparsity_at(0, i)) places.push_back(i);
  return places;
}

/// Returns the seconds between saves; nullopt if they are counted in steps.
std::optional<double> save_interval_s(const checkpoint::CheckpointOptions& options) {
  if (options.save_checkpoints_steps) return std::nullopt;
  return static_cast<double>(
      options.save_checkpoints_secs.value_or(checkpoint::CheckpointOptions::kDefaultSecs));
}

/// Returns when the ranks of this session began, for goodput.csv.
metrics::LaunchFacts launch_of(const std::optional<Resumed>& resumed) {
  if (!resumed || !resumed->is_from_memory) return metrics::launch_facts();
  return {.began_s = metrics::unix_time_s()};  // these processes began long before
}

train::Recorder make_recorder(const TrainingContext& context, Telemetry& telemetry,
                              const SessionWorld& world, const std::optional<Resumed>& resumed) {
  return train::Recorder(
      {.summary = context.config.summary,
       .project_dir = context.config.run.project().folder(),
       .node = world.process.node,
       .is_root = world.process.rank == 0,
       .launch = launch_of(resumed),
       .total_steps = context.total_steps(),
       .global_batch_size = context.facts.global_batch_size,
       .is_interactive = world.is_interactive,
       .resumed_from_step = resumed ? std::optional(resumed->step) : std::nullopt,
       .pruning_modifiers = pruning_modifiers(context.recipe.timeline()),
       .num_parameters = context.num_parameters(),
       .num_prunable_weights = context.num_prunable_weights(),
       .run_text = settings_text(context.config.settings),
       .params = &context.model->params(),
       .save_interval_s = save_interval_s(context.config.checkpoint),
       .save_interval_steps = context.config.checkpoint.save_checkpoints_steps,
       .has_spares = static_cast<bool>(world.can_replace),
       .line_before = resumed ? resumed->last_line : std::nullopt},
      context.recipe, telemetry.metrics(), telemetry.health());
}

/// Sets the saver's hooks: calls of tests, the end of the grace period, lost peers.
void attend_saves(TrainingContext& context, const SessionWorld& world,
                  const std::shared_ptr<EndLimit>& limit) {
  context.saver.set_at_phase(world.at_save_phase);
  // A rank that can be replaced is also lost in the step, which continues the run.
  context.saver.set_on_lost([&world](const Error& error) {
    if (world.can_replace && world.can_replace(error)) return;
    if (world.abort) world.abort(error);
  });
  context.saver.set_while_waiting([limit, &saver = context.saver] { limit->look(saver.number()); });
}

train::PastEvaluations past_evaluations(TrainingContext& context,
                                        const std::optional<Resumed>& resumed) {
  const RunConfig& config = context.config;
  return train::past_evaluations({.project_dir = config.run.project().folder(),
                                  .eval = config.eval,
                                  .publish = config.publish,
                                  .clock = context.clock,
                                  .is_own_save = resumed && resumed->is_own,
                                  .is_from_memory = resumed && resumed->is_from_memory,
                                  .has_eval_data = context.eval_data != nullptr},
                                 context.control);
}

/// Longest wait for a rank that is still at the start of a session when others are lost.
constexpr double kPatienceAtStart_s = 60;

/// True if each rank on CPUs holds the whole state, so that another one can take it over.
bool keeps_whole_state(TrainingContext& context) {
  return context.flat_params.device().is_cpu() && !context.mode->is_local() &&
         !context.reducer.is_sharded() && !context.recipe.reads_gradients() &&
         // The state is that of checkpoints.
         std::ranges::all_of(checkpoint::CheckpointOptions().include, [&](const std::string& part) {
           return context.config.checkpoint.includes(part);
         });
}

/// Prepares a save, which may remove other checkpoints. An export may still be reading one of them.
/// Weights that are not finite must not replace good checkpoints.
void prepare_save(exports::ModelPublisher& exports, TrainingContext& context,
                  const train::RunSaves& saves) {
  exports.wait_until_read();
  train::require_finite_weights(*context.model, context.clock.step, saves.last_commit(),
                                context.control);
}

/// Runs the loop. Throws RanksLost if other ranks are lost and the run can continue in this
/// process.
train::RunResult run_loop(const train::RunParts& parts, TrainingContext& context,
                          const SessionWorld& world, const Requests& requests,
                          const metrics::Health& health) {
  try {
    return train::Run(parts).go();
  } catch (const Error& error) {
    const auto noticed_at = std::chrono::steady_clock::now();
    if (!parts.training.may_lose_ranks || !world.can_replace(error)) throw;
    log::warning("run", fmt::format("{}; this rank continues with those that take the places of "
                                    "lost ones",
                                    error.what()));
    if (!parts.trainer.undo_step()) throw;
    // The saver's thread may still read the state, and ends when it finds the lost rank too.
    // The others have waited for a rank that hangs about as long as this one.
    const double share = error.code() == ExitCode::kWatchdog ? 0.25 : 1;
    RanksLost lost{remember(context), share * context.config.sync.timeout_s};
    // A save's thread waits for a rank that hangs as long as checkpoint.timeout_s.
    world.end_late(lost.patience_s);
    lost.memory.lost_at = noticed_at;
    lost.memory.last_commit = parts.saves.last_commit();
    lost.memory.last_line = parts.recorder.last_line();
    lost.memory.requests = requests.open();
    lost.memory.was_root = context.control.rank() == 0;
    // Only rank 0 was asked to pause, but all ranks know that they do.
    if (!lost.memory.was_root && health.state() == metrics::RunState::kPaused)
      lost.memory.requests.pause = true;
    throw lost;
  }
}

/// Returns the parts of a step. All arguments must outlive them.
train::TrainerParts step_parts(TrainingContext& context, RunHooks& hooks, const SessionWorld& world,
                               train::RunSaves& saves, Requests& requests,
                               train::StepTensors* tensors) {
  train::TrainerParts parts = context.trainer_parts();
  const bool keeps_tensors = hooks.training().read_tensors();
  parts.before_changes = [&saves] { saves.wait_until_staged(); };
  parts.tensors = keeps_tensors ? tensors : nullptr;
  parts.stop = &requests;
  parts.graph = context.choose_graph(keeps_tensors);
  parts.may_lose_ranks = world.can_replace && keeps_whole_state(context);
  if (world.can_replace && !parts.may_lose_ranks && context.control.rank() == 0)
    log::warning(
        "run",
        "spare processes cannot replace a lost rank: each rank holds state that no other "
        "rank has (sync.shard_optimizer, sync.share_weights: on, local steps, GPUs, recipes "
        "that read gradients), or checkpoint.include is incomplete. After a loss all ranks "
        "restart from the last checkpoint");
  return parts;
}

/// Returns what goodput.csv says of the end of a run; nullopt for a failure.
std::optional<metrics::StartEnd> start_end_of(train::RunEnd end) {
  switch (end) {
    case train::RunEnd::kFinished:
    case train::RunEnd::kStoppedEarly:
      return metrics::StartEnd::kFinished;
    case train::RunEnd::kStopped:
    case train::RunEnd::kEnded:
      return metrics::StartEnd::kStopped;
    default:
      return std::nullopt;
  }
}

/// Builds the recorder and all parts of the loop, and trains to the last step.
ExitCode train_to_the_end(TrainingContext& context, Telemetry& telemetry, RunHooks& hooks,
                          const SessionWorld& world, Requests& requests, Watchdog& watchdog,
                          train::ReplicaCheck& replica_check, const std::optional<Resumed>& resumed,
                          const std::function<void()>& on_training) {
  const RunConfig& config = context.config;
  train::Recorder recorder = make_recorder(context, telemetry, world, resumed);
  const auto limit = std::make_shared<EndLimit>(requests, config.preemption.grace_s, world.abort);
  attend_saves(context, world, limit);
  exports::ModelPublisher exports(config.run.project().folder(), config.publish, context.control,
                                  [&](bool ok) { telemetry.metrics().record_export(ok); });
  train::RunSaves saves(
      {.saver = context.saver,
       .schedule = context.schedule,
       .options = config.checkpoint,
       .replica_check = replica_check,
       .state = [&] { return context.state(); },
       .prefix = context.save_prefix(),
       .recorder = recorder,
       .control = context.control,
       .clock = context.clock,
       .last_saved_step = resumed && resumed->is_own && !resumed->is_unstored ? resumed->step : -1,
       .last_commit = resumed && !resumed->is_unstored ? resumed->prefix : "",
       .before = [&] { prepare_save(exports, context, saves); }});
  hooks.set_recorder(recorder);
  train::StepTensors tensors(context.spec.num_classes);
  train::TrainerParts training = step_parts(context, hooks, world, saves, requests, &tensors);
  train::Trainer trainer(training, config.train);
  const train::PastEvaluations past = past_evaluations(context, resumed);
  on_training();
  const train::RunResult result =
      run_loop({.trainer = trainer,
                .training = training,
                .saves = saves,
                .replica_check = replica_check,
                .handler = context.handler,
                .eval_data = context.eval_data.get(),
                .eval_loader = context.eval_loader(),
                .eval = config.eval,
                .patience = past.patience,
                .recorder = recorder,
                .stop = requests,
                .grace_s = config.preemption.grace_s,
                .total_steps = context.total_steps(),
                .save_at_end = config.checkpoint.enabled && config.checkpoint.save_at_end,
                .evaluates_first = past.is_missing,
                .loss_before = past.train_loss,
                .on_step = world.on_step,
                .hooks = hooks.training(),
                .eval_hooks = hooks.evaluation(),
                .exports = config.publish.any() ? &exports : nullptr,
                .publish = config.publish,
                .reload = [&](const std::string& save) { reload(save, context); },
                .change =
                    [&](const Change& change) {
                      end_if_asked(change, context.control.rank());
                      requests.note_made(change);
                      follow(change, {context.saver, recorder, watchdog, *limit});
                    }},
               context, world, requests, telemetry.health());
  if (const auto end = start_end_of(result.end)) recorder.end_run(*end);
  telemetry.note_final();
  return conclude(result, context, recorder, telemetry, resumed);
}

/// Chooses the device, the same kind on all ranks. Collective.
at::Device choose_device(const RunOptions& options, const dist::ProcessInfo& process,
                         dist::Communicator& control) {
  prepare_deterministic_gpu(options);
  const at::Device device = agree_on_device(options.device, process, control);
  (void)dist::on_all_ranks(control, [&] {
    require_device_keeps_promises(options, device);
    return true;
  });
  return device;
}

/// Checks that all ranks have the same network. Shares one copy of its weights if possible.
void check_and_share(TrainingContext& context, dist::Communicator& gradients,
                     const dist::ProcessInfo& process) {
  (void)dist::on_all_ranks(context.control, [&] { return context.total_steps(); });
  check_equal_models(context);
  train::share_weights({context.config.sync, *context.model, context.flat_params, context.recipe,
                        context.control, gradients, process,
                        /*has_users_hooks=*/!context.config.hooks.empty(),
                        /*may_write_weights=*/!context.repeats_itself()});
  // Each rank updates all matrices then, and products' last bits depend on these.
  if (context.flat_params.device().is_cpu() && !context.reducer.is_sharded() &&
      std::ranges::any_of(context.model->params(), &Param::is_matrix))
    dist::require_equal(
        context.control, "what the bits of Muon's products depend on (run.threads)",
        fmt::format("{} threads, {}", at::get_num_threads(), at::get_cpu_capability()));
}

/// Reads the state that training resumes from or starts with.
std::optional<Resumed> restore(const ResumeOptions& options, const RunMemory* memory,
                               TrainingContext& context, Telemetry& telemetry, Requests& requests) {
  telemetry.note_restoring();
  load_teacher(context);
  const std::optional<Resumed> resumed =
      memory != nullptr ? resume_from(*memory, context) : resume(options, context);
  warm_start(context, resumed.has_value());
  // Moving averages that no checkpoint contained begin with the weights.
  if (context.ema.begin() && resumed && context.control.rank() == 0)
    log::info(
        "resume",
        "the checkpoint contains no moving average: it starts with the weights of the checkpoint");
  telemetry.note_restored();
  if (resumed && resumed->is_from_memory) {
    requests.note_step(resumed->step);
    requests.reopen(resumed->requests, context.control.rank() == 0);
  }
  return resumed;
}

/// Makes the run visible to others: targets, control socket, health, log.
void show(const TrainingContext& context, Telemetry& telemetry, const dist::ProcessInfo& process,
          Requests& requests, const std::optional<Resumed>& resumed) {
  telemetry.publish_targets(context.config, process, context.control);
  telemetry.open_control_socket(context.config, process, context.control, requests);
  telemetry.health().note_world_formed();
  requests.note_step(context.clock.step);
  announce(context, process, resumed);
  if (resumed && resumed->is_from_memory)
    telemetry.metrics().record_takeover(resumed->step, resumed->duration_s);
  else if (resumed)
    telemetry.metrics().record_restore({.step = resumed->step,
                                        .duration_s = resumed->duration_s,
                                        .num_damaged_saves = resumed->num_damaged_saves});
}

/// All ranks stop writing before rank 0 unlocks the run folder.
void finish(ExitCode code, TrainingContext& context, Telemetry& telemetry,
            const StopRequest& requests) {
  context.saver.join();
  context.control.barrier();
  if (code == ExitCode::kDone) telemetry.linger(context.config.metrics, requests);
}

/// Waits until all ranks have come here, because MPI_Finalize waits forever for a hanging rank. The
/// limit includes the linger time, in which ranks may differ. Throws Error(kWatchdog), which names
/// the rank.
void exit_together(dist::Communicator& control, const RunConfig& config) {
  const double before_s =
      control.set_timeout(config.sync.timeout_s + static_cast<double>(config.metrics.linger_s));
  control.barrier();
  control.set_timeout(before_s);
}

/// True if ranks were lost before training went on, so that this rank's memory is still the newest.
bool can_begin_again(const std::exception& error, const SessionOptions& options,
                     const SessionWorld& world) {
  return options.memory != nullptr && !options.memory->is_used && world.can_replace &&
         world.can_replace(known_error(error));
}

/// on_training: called before the first step.
ExitCode run_once(const SessionOptions& options, const std::optional<std::string>& config_text,
                  const SessionWorld& world, const std::function<void()>& on_training) {
  // Only reading parts come first, so that a fault leaves no trace.
  RunConfig config = load(options, config_text, world);
  const flags::Frozen frozen(config.flag_texts);
  Requests requests(world.stop);
  // The meaning of signals comes from the run file, so it is set only now.
  requests.set_stop_signals(config.preemption.stop_signals());
  // A communicator of its own for this run: its time limit is the run file's.
  const std::unique_ptr<dist::Communicator> own_control = world.make_cpu_communicator(config.sync);
  dist::Communicator& control = *own_control;
  metrics::Health health(metrics::Health::Clock::now(), /*tells_states=*/control.rank() == 0);
  const std::unique_ptr<StopNotice> notice = make_stop_notice(world, requests, health);
  const RankEvents events(control, config.run.project().logs());
  Watchdog watchdog(config.watchdog, control.rank(), events, health,
                    actions_of(config, world, requests));
  // Before the first large tensor: threads and core binding decide where memory is allocated.
  set_up_compute(config.run, world.process, world.control);
  const at::Device device = choose_device(config.run, world.process, control);
  fit_to_world(device, world, &config);
  const std::optional<metrics::GpuFacts> gpu = set_up_processor(config, device, control);
  const std::unique_ptr<dist::Communicator> gradients =
      make_gradient_communicator(config.sync, device, control, world);
  const std::unique_ptr<dist::Communicator> saves = make_save_communicator(config, world);
  const auto context = make_context(&config, gpu, control, *gradients, *saves);
  check_and_share(*context, *gradients, world.process);
  // Locks an existing folder before resume() reads from it.
  RunDirectory run_directory(config, world.process, control);
  const OpenedLibraries libraries{.mpi = world.mpi_version,
                                  .nccl = device.is_cuda() ? dist::nccl_version() : ""};
  Telemetry telemetry(config, world.process, libraries,
                      recal::modifier_names(context->recipe.timeline()), control, requests, health);
  if (gpu) telemetry.show_gpu(*gpu);
  const auto hooks = dist::on_all_ranks(
      control, [&] { return std::make_unique<RunHooks>(*context, telemetry, world.process); });
  const std::optional<Resumed> resumed =
      restore(options.resume, options.memory, *context, telemetry, requests);
  train::ReplicaCheck replica_check(
      control, [&] { return context->state(); }, config.sync.replica_check_every);
  // Ranks that differ from the start would train different models.
  replica_check.require(resumed ? "after the restore" : "at the start");
  if (config.checkpoint.enabled) context->saver.prepare(context->state());

  // So far restore() may have completed a killed save's commit, and nothing else was written. From
  // here on the run writes to its folder.
  run_directory.open();
  ExitCode code = ExitCode::kDone;
  try {
    if (resumed && resumed->is_own && control.rank() == 0)
      checkpoint::tidy_interrupted(context->save_prefix(), resumed->step);
    show(*context, telemetry, world.process, requests, resumed);
    code = train_to_the_end(*context, telemetry, *hooks, world, requests, watchdog, replica_check,
                            resumed, on_training);
    finish(code, *context, telemetry, requests);
  } catch (std::exception& error) {
    if (can_begin_again(error, options, world)) throw;
    end_failed(error, *context, telemetry, world, events, requests);
    throw;
  }
  exit_together(control, config);
  return code;
}

}  // namespace

ExitCode run_session(const SessionOptions& options, const SessionWorld& world) {
  std::optional<std::string> config_text;
  try {
    config_text = text_of_run(options, world);
    return run_once(options, config_text, world, [&options] {
      // As large as the state, and older than the next step.
      if (options.memory != nullptr) *options.memory = RunMemory{.is_used = true};
    });
  } catch (RanksLost& lost) {
    lost.memory.config_text = config_text.value_or("");
    throw;
  } catch (const std::exception& error) {
    if (!can_begin_again(error, options, world)) throw;
    log::warning("run", fmt::format("{}, before training went on", error.what()));
    throw RanksLost{*options.memory, kPatienceAtStart_s};
  }
}

}  // namespace lockstep::daemon
