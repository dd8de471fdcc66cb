#include "daemon/run/resume.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/import/load_weights.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/host_copy.h"
#include "dist/communicator.h"
#include "python/python_types.h"
#include "train/step/training_pass.h"

// Chooses the checkpoint to resume from and restores it. Rank 0 looks at the folder and broadcasts
// its objection, so that all ranks throw the same error.
namespace lockstep::daemon {
namespace {

std::filesystem::path saves_folder(const TrainingContext& context) {
  return context.config.checkpoint.folder(context.config.run.project());
}

/// Rank 0 evaluates `objection`. If it returns a text, all ranks throw it.
template <typename Objection>
void refuse_if(dist::Communicator& control, const Objection& objection) {
  const std::string text =
      dist::broadcast_text(control, control.rank() == 0 ? objection() : std::string());
  if (!text.empty()) throw Error(ExitCode::kConfig, "resume", text).everywhere();
}

std::string names_of(const std::vector<checkpoint::SaveName>& saves) {
  std::vector<std::string> names;
  for (const checkpoint::SaveName& save : saves)
    names.push_back(std::filesystem::path(save.prefix).filename().string());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Refuses a folder with checkpoints. `text` gets their names.
template <typename Text>
void refuse_any_save(dist::Communicator& control, const std::filesystem::path& folder,
                     const Text& text) {
  refuse_if(control, [&] {
    const auto saves = checkpoint::find_saves(folder);
    return saves.empty() ? std::string() : text(names_of(saves));
  });
}

/// Refuses checkpoints without a step, which are for other programs.
std::string objection_to_lost_clock(const std::filesystem::path& folder,
                                    const std::string& wanted) {
  const auto saves = checkpoint::find_saves(folder);
  if (saves.empty() && (wanted == "auto" || wanted == "never")) return "";
  return fmt::format(
      "checkpoint.include lacks clock, so no run can continue from {}: add clock, or choose "
      "{} (checkpoint.warm_start_ckpt starts a new run with the weights of a checkpoint)",
      saves.empty() ? wanted : names_of(saves) + " in " + folder.string(),
      checkpoint::another_place(folder));
}

/// True if both prefixes lead to the same checkpoint, whatever their spelling.
bool same_save(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return one == other || std::filesystem::equivalent(checkpoint::index_path(one),
                                                     checkpoint::index_path(other), ignored);
}

/// Refuses an older checkpoint of the same folder: a later `auto` would resume from the newest.
std::string objection_to_newer_saves(const std::filesystem::path& folder, const std::string& prefix,
                                     const std::string& wanted) {
  // A missing checkpoint is reported later.
  if (!files::exists(checkpoint::index_path(wanted))) return "";
  const auto saves = checkpoint::find_saves(folder, prefix);
  if (saves.empty() || same_save(saves.back().prefix, wanted)) return "";
  return fmt::format(
      "--resume {} is not the newest checkpoint of {} ({}): a start without --resume would "
      "continue from the newest. Remove --resume, or move the newer checkpoints away, or choose "
      "{}",
      wanted, folder.string(), names_of(saves), checkpoint::another_place(folder));
}

/// Refuses copies on the hosts that a later `auto` would prefer. `prefix`: of copies; its folder is
/// empty without them. Collective.
void refuse_newer_copies(dist::Communicator& control, const std::filesystem::path& prefix,
                         const std::string& wanted) {
  if (!prefix.has_parent_path()) return;
  const auto parts = checkpoint::parse_save_name(wanted);
  for (const checkpoint::HostCopies& copies :
       checkpoint::find_host_copies(prefix.string(), control))
    if (!copies.is_stored && (!parts || copies.number > parts->number))
      throw Error(
          ExitCode::kConfig, "resume",
          fmt::format("the store lacks step {}, but the hosts have a copy ({}). --resume "
                      "auto would continue from it: remove the copies on all hosts, or "
                      "drop --resume {}",
                      copies.number, checkpoint::numbered(prefix.string(), copies.number), wanted))
          .everywhere();
}

/// Returns a text in a checkpoint; empty if it does not exist or is not readable.
std::string text_in(const std::string& prefix, const std::string& key) {
  std::string text;
  (void)checkpoint::fault_of([&] {
    checkpoint::BundleReader reader(prefix);
    const std::string name = checkpoint::index_name(key);
    if (reader.find(name) != nullptr) text = reader.read_strings(name).at(0);
  });
  return text;
}

/// Returns the optimizer type of a checkpoint's run; empty if unknown.
std::string optimizer_of(const std::string& prefix) {
  const std::string settings = text_in(prefix, "_lockstep/settings");
  constexpr std::string_view kType = "optimizer.type=";
  for (const std::string& line : split(settings))
    if (line.starts_with(kType)) return line.substr(kType.size());
  return settings.empty() ? "" : optim::OptimizerOptions().type;
}

/// Explains a checkpoint that lacks the state of another optimizer: it is not damaged and need not
/// be removed.
std::string objection_to_other_optimizer(const TrainingContext& context,
                                         const std::string& wanted) {
  if (!context.config.checkpoint.includes("optimizer")) return "";
  std::string prefix = wanted;
  if (wanted == "auto") {
    const auto saves =
        checkpoint::find_saves(saves_folder(context), context.config.checkpoint.prefix);
    if (saves.empty()) return "";
    prefix = saves.back().prefix;
  }
  const std::string before = optimizer_of(prefix), now = context.config.optimizer.type;
  if (before.empty() || before == now) return "";
  return fmt::format(
      "{}: optimizer.type was {} and is now {}: the checkpoint contains other moments. Set it "
      "back, or choose {} and start with the weights of the checkpoint "
      "(checkpoint.warm_start_ckpt)",
      prefix, before, now, checkpoint::another_place(prefix));
}

/// Calls `restore`. If checkpoints do not fit, reports a changed optimizer as the reason.
template <typename Restore>
auto restored(TrainingContext& context, const std::string& wanted, const Restore& restore) {
  try {
    return restore();
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kConfig) throw;
    refuse_if(context.control, [&] { return objection_to_other_optimizer(context, wanted); });
    throw;
  }
}

/// Finds and restores the checkpoint for `wanted`; nullopt if the run starts from step 0.
/// Collective.
std::optional<checkpoint::RestoreReport> load(const std::string& wanted, TrainingContext& context,
                                              const StateList& state) {
  const std::filesystem::path folder = saves_folder(context);
  const std::string& prefix = context.config.checkpoint.prefix;
  checkpoint::run_on_all(context.control, [&] {
    if (context.control.rank() == 0) checkpoint::finish_replacements(folder);
  });
  if (!context.config.checkpoint.includes("clock")) {
    refuse_if(context.control, [&] { return objection_to_lost_clock(folder, wanted); });
    return std::nullopt;
  }
  const std::filesystem::path copies =
      context.config.checkpoint.copies_folder(context.config.run.project());
  if (wanted == "never") {  // a later `auto` would mix two runs
    refuse_any_save(context.control, folder, [&](const std::string& names) {
      return fmt::format(
          "{} contains checkpoints ({}) and --resume is never: choose {}, remove the folder, or "
          "remove --resume to continue",
          folder.string(), names, checkpoint::another_place(folder));
    });
    refuse_newer_copies(context.control, copies / prefix, wanted);
    return std::nullopt;
  }
  if (wanted != "auto") {
    refuse_if(context.control, [&] { return objection_to_newer_saves(folder, prefix, wanted); });
    refuse_newer_copies(context.control, copies / prefix, wanted);
    return restored(context, wanted,
                    [&] { return checkpoint::restore_on_all(wanted, state, context.control); });
  }
  auto report = restored(context, wanted, [&] {
    return checkpoint::restore_latest(folder, prefix, state, context.control, copies);
  });
  // To start over in a folder with checkpoints of another prefix is never intended.
  if (!report)
    refuse_any_save(context.control, folder, [&](const std::string& names) {
      return fmt::format(
          "{} contains checkpoints, but none with checkpoint.prefix {} ({}): set the prefix back, "
          "or choose {}",
          folder.string(), prefix, names, checkpoint::another_place(folder));
    });
  return report;
}

[[noreturn]] void refuse_changed_recipe(const std::vector<std::string>& changes) {
  throw Error(
      ExitCode::kConfig, "resume",
      fmt::format("the recipe's timeline has changed since the checkpoint:\n  {}\ngive "
                  "--accept-recipe-change to continue with the new one, or set the recipe back",
                  fmt::join(changes, "\n  ")))
      .everywhere();
}

/// Refuses a checkpoint without the masks of its recipe. With an unchanged recipe, this happens
/// only if checkpoint.include of its run lacked modifiers.
void refuse_lost_masks(const checkpoint::RestoreReport& report) {
  for (const std::string& key : report.filled)
    if (key.starts_with("_lockstep/masks/"))
      throw Error(
          ExitCode::kConfig, "resume",
          fmt::format("{} contains no masks, although its recipe prunes (its checkpoint.include "
                      "lacked modifiers): to continue would let all pruned weights grow again. "
                      "checkpoint.warm_start_ckpt starts a new run with its weights",
                      report.prefix))
          .everywhere();
}

/// Warns of state that checkpoint.include leaves out, so that it starts from its initial values.
void warn_of_missing_state(const checkpoint::CheckpointOptions& saved) {
  if (!saved.includes("optimizer"))
    log::warning("resume",
                 "checkpoint.include lacks optimizer: moments and update counts start at zero");
  if (!saved.includes("random"))
    log::warning("resume",
                 "checkpoint.include lacks random: run.seed may differ from that of the "
                 "checkpoint, and so may the order of samples and dropout");
}

void log_resume(const TrainingContext& context, const checkpoint::RestoreReport& report,
                const CheckpointMetadata& saved, const std::vector<std::string>& changes) {
  if (context.control.rank() != 0) return;
  log::info("resume", fmt::format("resuming from step {} ({})", context.clock.step, report.prefix));
  warn_of_missing_state(context.config.checkpoint);
  for (const std::string& change : changes) log::info("resume", "the recipe changed: " + change);
  if (!changes.empty())
    log::warning("resume",
                 "masks and values are those of the checkpoint: entries before this step that "
                 "prune, keep, release or set do not act again; rates, decays, trainability and "
                 "quantization follow the new recipe");
  for (const std::string& change : changes_since(saved, context.facts))
    log::info("resume", "changed since the checkpoint: " + change);
  if (!report.unused.empty())
    log::warning("resume",
                 fmt::format("the checkpoint contains {} value(s) that this run does not use: {}{}",
                             report.unused.size(), report.unused.front(),
                             report.unused.size() > 1 ? ", ..." : ""));
}

/// Returns the SHA-256 of all tensors, in the order of the list.
std::string digest_of(const StateList& state) {
  Sha256 digest;
  for (const StateEntry& entry : state)
    if (entry.tensor.defined()) digest.add(entry.tensor.cpu());
  return digest.hex();
}

}  // namespace

void reload(const std::string& prefix, TrainingContext& context) {
  // Compare digests of the live tensors before and after reading the checkpoint over them.
  const StateList state = context.learned_state();
  const std::string before = digest_of(state);
  (void)checkpoint::restore_on_all(prefix, state, context.control);
  (void)dist::on_all_ranks(context.control, [&] {
    if (digest_of(state) != before)
      throw Error(ExitCode::kBadData, "eval",
                  fmt::format("{} differs from the state of this run at step {} "
                              "(eval.strict_restore_on_switch): check memory and file system",
                              prefix, context.clock.step));
    return true;
  });
}

std::optional<Resumed> resume(const ResumeOptions& options, TrainingContext& context) {
  train::Stopwatch watch;
  if (!context.config.checkpoint.enabled) {
    if (options.wanted != "auto" && options.wanted != "never")
      throw Error(ExitCode::kConfig, "resume",
                  fmt::format("--resume {} cannot be combined with checkpoint: off, which neither "
                              "saves nor restores",
                              options.wanted))
          .everywhere();
    return std::nullopt;
  }
  // restore() fills context.facts with the checkpoint's facts; keep this run's own.
  const CheckpointMetadata now = context.facts;
  const auto report = load(options.wanted, context, context.state());
  if (!report) return std::nullopt;
  const CheckpointMetadata saved = std::exchange(context.facts, now);
  // The state is already overwritten here; a refusal ends the run, so that does no harm.
  require_compatible(saved, now);
  const std::vector<std::string> changes =
      recal::timeline_changes(saved.timeline, now.timeline, context.clock.step);
  if (!changes.empty() && !options.accept_recipe_change) refuse_changed_recipe(changes);
  if (changes.empty()) refuse_lost_masks(*report);
  // The masks are restored as bits; apply them to the weights before anything reads these.
  context.recipe.restored(context.control);
  log_resume(context, *report, saved, changes);
  const std::string own = checkpoint::numbered(context.save_prefix(), context.clock.step);
  return Resumed{.step = context.clock.step,
                 .prefix = report->prefix,
                 .is_own = report->is_unstored || same_save(own, report->prefix),
                 .is_unstored = report->is_unstored,
                 .duration_s = watch.lap(),
                 .num_damaged_saves = report->num_damaged};
}

constexpr int64_t kLeastZeros = 5;  // one fifth of the weights: fewer zeros may be chance

/// True for a folder of this host, or for a prefix of names in an object store.
static bool is_folder(const std::string& named) {
  if (checkpoint::is_there(checkpoint::index_path(named))) return false;
  files::FileStore* const store = files::store_of(named);
  if (store == nullptr) return files::is_folder(named);
  return !store->look_at(named) && !store->list(named + (named.ends_with('/') ? "" : "/")).empty();
}

/// Returns the checkpoint for a name. A folder means its newest checkpoint; a run's folder means
/// the newest in its sub-folder. A folder of save_pretrained() is returned unchanged.
/// key: of the run file, for messages.
static std::string found_save(const std::string& named, const char* key,
                              dist::Communicator& control) {
  // Only rank 0 looks, and all ranks take its answer: they may see a file system differently.
  const bool is_found =
      dist::on_all_ranks(control, [&] { return control.rank() == 0 && is_folder(named); });
  if (!dist::any_of(control, is_found)) return named;
  for (const std::filesystem::path& folder :
       {std::filesystem::path(named), std::filesystem::path(named) / "checkpoints"})
    if (const auto newest = checkpoint::latest_checkpoint(folder, control)) return *newest;
  const bool has_weights = dist::on_all_ranks(control, [&] {
    return control.rank() == 0 && checkpoint::weights_in_folder(named).has_value();
  });
  if (dist::any_of(control, has_weights)) return named;
  throw Error(ExitCode::kInputMissing, "warm start",
              fmt::format("{}: no checkpoints in {}, and no model.safetensors or "
                          "model.safetensors{}",
                          key, named, checkpoint::kShardIndexEnding))
      .everywhere();
}

/// Values by the names of the model's own variables.
class ValuesInMemory final : public checkpoint::WeightsFile {
 public:
  explicit ValuesInMemory(const python::Map& values) {
    for (const auto& [name, value] : values) tensors_.emplace(name, value.as_tensor());
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }
  checkpoint::ValueForm form(const std::string& name) const override {
    return checkpoint::form_of({.key = name, .tensor = tensors_.at(name)});
  }
  at::Tensor read(const std::string& name) override { return tensors_.at(name); }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

/// Opens the source of a warm start. A folder for a module of transformers is read by its class,
/// which renames and joins what files contain. With rules for names, they apply to the file's.
static std::unique_ptr<checkpoint::WeightsFile> open_source(
    const model::Model& model, const std::string& path,
    const checkpoint::WarmStartOptions& options) {
  auto file = checkpoint::open_weights(path);  // first: its messages name damaged files
  const auto* module = dynamic_cast<const python::PythonModel*>(&model);
  if (module == nullptr || !options.warm_start_rename.empty() || !files::is_folder(path))
    return file;
  const python::Value values = module->call_glue("read_pretrained", {path});
  if (values.is_none()) return file;
  return std::make_unique<ValuesInMemory>(values.as_map());
}

/// Returns parameters and buffers by dotted name, detached.
static StateList variables_of(const model::Model& model) {
  StateList list;
  for (const Param& param : model.params())
    list.push_back({.key = param.name, .tensor = param.tensor.detach()});
  for (const model::Buffer& buffer : model.buffers())
    list.push_back({.key = buffer.name, .tensor = buffer.tensor});
  return list;
}

static std::string text_of(const std::pair<std::string, std::string>& loaded) {
  const auto& [variable, name] = loaded;
  return plain_name(variable) == plain_name(name) ? variable
                                                  : fmt::format("{} from {}", variable, name);
}

static void log_loaded(const checkpoint::LoadReport& report, const std::string& path,
                       size_t num_variables) {
  std::vector<std::string> loaded;
  for (const auto& pair : report.loaded) loaded.push_back(text_of(pair));
  log::info("warm start", fmt::format("{} of {} variables loaded from {}: {}", loaded.size(),
                                      num_variables, path, fmt::join(loaded, ", ")));
  const auto log_list = [](const std::vector<std::string>& names, std::string_view what) {
    if (!names.empty())
      log::info("warm start", fmt::format("{} {}: {}", names.size(), what, fmt::join(names, ", ")));
  };
  log_list(report.turned, "kernels transposed from TensorFlow's dimension order");
  log_list(report.left_out, "not filled, by the scopes");
  log_list(report.kept, "counters are missing and start at 0");
  log_list(report.unused, "saved variables are unused");
}

/// Warns if the loaded weights are pruned and the recipe does not keep or create zeros from the
/// first step on. Updates would silently overwrite the zeros.
static void warn_of_zeros(const TrainingContext& context) {
  int64_t num_weights = 0, num_zeros = 0;
  for (const Param& param : context.model->params()) {
    if (!param.prunable) continue;
    num_weights += param.tensor.numel();
    num_zeros += param.tensor.detach().eq(0).sum().item<int64_t>();
  }
  for (const recal::Action& action : context.recipe.timeline().due_at(0))
    if (action.kind == recal::ActionKind::kKeepZeros || action.kind == recal::ActionKind::kPrune)
      return;
  if (num_zeros * kLeastZeros < num_weights || num_zeros == 0) return;
  log::warning("warm start",
               fmt::format("{} of {} prunable weights are 0, and the recipe keeps no zeros from "
                           "the first step on: updates make them nonzero; to keep them, add a "
                           "!ConstantPruningModifier with start_epoch 0",
                           num_zeros, num_weights));
}

/// Copies the values at `path` into the variables of a network, on all ranks.
static checkpoint::LoadReport load_into(const model::Model& model, const StateList& variables,
                                        const std::string& path,
                                        const checkpoint::WarmStartOptions& options,
                                        dist::Communicator& control) {
  // Weights of linear layers and convolutions: frameworks differ in their memory layout.
  std::set<std::string> kernels;
  for (const Param& param : model.params())
    if (param.prunable) kernels.insert(param.name);
  return dist::on_all_ranks(control, [&] {
    const auto file = open_source(model, path, options);
    return checkpoint::load_weights(*file, path, variables, kernels, options);
  });
}

void load_teacher(TrainingContext& context) {
  const train::TeacherOptions& options = context.config.train.teacher;
  if (context.teacher == nullptr || options.is_self()) return;
  const model::Model& network = context.teacher->network();
  const StateList variables = variables_of(network);
  if (options.is_loaded()) {
    const std::string path = found_save(options.from, "train.distill_teacher", context.control);
    (void)load_into(network, variables, path, {}, context.control);
    if (context.control.rank() == 0) log::info("start", "the teacher's weights are from " + path);
  }
  context.facts.teacher_sha256 = digest_of(variables);
  dist::require_equal(context.control, "the teacher's weights", context.facts.teacher_sha256);
}

void warm_start(TrainingContext& context, bool is_resumed) {
  const checkpoint::WarmStartOptions& options = context.config.checkpoint.warm_start;
  const std::string& named = options.warm_start_ckpt;
  if (named.empty()) return;
  if (is_resumed) {
    if (context.control.rank() == 0)
      log::info("warm start",
                "the run continues from its own checkpoint: " + named + " is not read");
    return;
  }
  const std::string path = found_save(named, "checkpoint.warm_start_ckpt", context.control);
  const StateList variables = variables_of(*context.model);
  const checkpoint::LoadReport report =
      load_into(*context.model, variables, path, options, context.control);
  if (context.control.rank() != 0) return;
  log_loaded(report, path, variables.size());
  warn_of_zeros(context);
}

}  // namespace lockstep::daemon
