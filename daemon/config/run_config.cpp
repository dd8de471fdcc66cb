#include "daemon/config/run_config.h"

#include <string_view>

#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/digest.h"
#include "base/files/files.h"
#include "base/process.h"
#include "base/yaml/yaml_document.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/preset.h"
#include "daemon/config/renamed_keys.h"
#include "estimator/estimator.h"
#include "python/python_types.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/modifier_table.h"
#include "remote/object_store.h"

// Reader of the run file, and the combinations of settings that it refuses.
namespace lockstep::daemon {

// Combinations of settings that are refused because they involve several sections. Each section's
// own reader refuses what is wrong within the section.

namespace {

/// Returns where a key's value comes from, " (flag --sync_replicas)"; empty for a default.
std::string origin_of(std::string_view path, const ConfigReader& in) {
  const YamlPair pair = find_at_path(in.node(), path);
  if (!pair.key.IsScalar()) return "";
  return fmt::format(" ({})", in.document().place_text(pair.key.Mark()));
}

/// Adds a fault of `section`: `setting` cannot be combined with `other`. Both are keys of the run
/// file, optionally followed by a colon and a value.
void refuse_pair(const char* section, std::string_view setting, std::string_view other,
                 std::string_view why, ConfigReader* in) {
  const auto origin = [&](std::string_view key) {
    return origin_of(key.substr(0, key.find(':')), *in);
  };
  in->fault(section, fmt::format("'{}'{} cannot be combined with {}{}: {}", setting,
                                 origin(setting), other, origin(other), why));
}

/// Refuses settings that make results depend on the number of ranks.
void refuse_what_is_not_elastic(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used) refuse_pair("run", "run.deterministic: elastic", key, why, in);
  };
  refuse(config.run.device == "cuda", "run.device: cuda",
         "on GPUs sums over ranks are in NCCL's order; use cpu");
  refuse(config.sync.comm_dtype != "fp32", "sync.comm_dtype",
         "a single rank sends no gradients to round; use fp32");
  refuse(config.sync.shard_optimizer, "sync.shard_optimizer", "set it to false");
  refuse(config.train.batch_norm != "average", "train.batch_norm",
         "only average uses all ranks' samples, shard by shard");
  refuse(config.data.batch_size_per_rank.has_value(), "data.batch_size_per_rank",
         "the batch would grow with the ranks; use data.global_batch_size");
}

/// Refuses settings that need the other ranks at every step.
void refuse_with_local_steps(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used) refuse_pair("sync", "sync.sync_replicas: false", key, why, in);
  };
  refuse(config.run.is_elastic(), "run.deterministic: elastic",
         "local steps depend on the number of ranks");
  refuse(config.train.batch_norm == "sync", "train.batch_norm: sync",
         "batches would be normalised over all ranks at every step; use average");
  refuse(config.train.precision == "fp16", "train.precision: fp16",
         "ranks agree on the loss scale at every step; use bf16");
}

/// Refuses settings with which two ranks compute different gradients from the same samples.
void refuse_with_audits(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used) refuse_pair("run", "run.audit_every", key, why, in);
  };
  refuse(!config.sync.sync_replicas, "sync.sync_replicas: false",
         "ranks have different weights between two averages");
  refuse(config.train.batch_norm == "sync", "train.batch_norm: sync",
         "the sums over all ranks would have another order; use average");
  refuse(config.run.deterministic == "false", "run.deterministic: false",
         "kernels may then give other bits each time; use true");
}

/// Refuses ways to exchange gradients that do not exist (dist/reduction_modes.h).
void refuse_missing_modes(const RunConfig& config, ConfigReader* in) {
  for (const dist::SyncConflict& conflict : dist::conflicts_of(config.sync))
    refuse_pair("sync", conflict.setting, conflict.other, conflict.why, in);
  if (config.run.device != "cuda") return;  // with `auto` the reducer refuses what a GPU cannot do
  if (config.sync.share_weights == "on")
    refuse_pair("sync", "sync.share_weights: on", "run.device: cuda",
                "a GPU has its own memory; use cpu", in);
  for (const char* refusal :
       {dist::refusal_of_packing_on_gpu(config.sync), dist::refusal_of_overlap_on_gpu(config.sync)})
    if (refusal != nullptr) in->fault("sync", refusal);
}

/// Requires what evaluations and exports of checkpoints need: saves and evaluation data.
void require_saves_and_data(const RunConfig& config, ConfigReader* in) {
  const bool saves = config.checkpoint.enabled;
  const auto refuse = [&](bool is_asked, const char* section, const std::string& what) {
    if (is_asked) in->fault(section, what);
  };
  refuse(config.eval.on_save && !saves, "eval",
         "'eval.on_save' evaluates checkpoints, and 'checkpoint: off' writes none");
  refuse((config.eval.on_save || config.publish.after_evaluation) && !config.data.eval, "eval",
         "'eval.on_save' and 'export.after_evaluation' evaluate checkpoints on 'data.eval', which "
         "is missing");
  refuse(config.publish.any() && !saves, "export",
         "section 'export' publishes checkpoints, and 'checkpoint: off' writes none");
  refuse(config.publish.at_end && saves && !config.checkpoint.save_at_end, "export",
         "'export.at_end' publishes the final checkpoint, and 'checkpoint.save_at_end' is false");
}

/// Adds a fault for each combination of settings that cannot work, with the reason and a way out.
/// `in`: reader of the whole run file.
void refuse_pairs(const RunConfig& config, ConfigReader* in) {
  if (config.run.is_elastic()) refuse_what_is_not_elastic(config, in);
  if (!config.sync.sync_replicas) refuse_with_local_steps(config, in);
  if (config.run.audit_every > 0) refuse_with_audits(config, in);
  refuse_missing_modes(config, in);
  require_saves_and_data(config, in);
  if (config.control.is_on_pages() && config.metrics.access.token_file.empty())
    in->fault(
        "control",
        fmt::format("'control.listen: pages'{} needs 'metrics.token_file': anyone who reaches "
                    "a page without one could stop the run and remove its checkpoints",
                    origin_of("control.listen", *in)));
  if (config.train.cuda_graphs == "on" && config.sync.overlap == "true")
    refuse_pair("train", "train.cuda_graphs: on", "sync.overlap",
                "a recorded backward pass does not report when gradients are ready; set one of "
                "them to auto",
                in);
  if (config.eval.use_ema.value_or(false) && !config.optimizer.ema_decay)
    in->fault(
        "eval",
        "'eval.use_ema: true' has nothing to evaluate: set optimizer.ema_decay, or remove it");
}

// Reading of the run file: document, overrides from all origins, presets and sections, in this
// order. Faults are collected, so that one pass reports all of them.

template <typename T>
void append(std::vector<T> more, std::vector<T>* list) {
  std::move(more.begin(), more.end(), std::back_inserter(*list));
}

void read_version(ConfigReader* in) {
  std::string version = "1.0.0";
  in->read("version", &version, "grammar of the run file");
  if (version.rfind("1.", 0) != 0)
    in->fault("version", "this program reads version 1.x of the run file, not '" + version + "'");
}

void read_trainer_keys(ConfigReader trainer, RunConfig* config) {
  ConfigReader run_config = trainer.section("run_config");
  config->profile = train::read_profile_options(&run_config);
  run_config.done();
  if (!trainer.lists_fields() && trainer.has("callbacks"))  // same keys as section `callbacks`
    append(coord::read_callbacks(trainer.section("callbacks")), &config->callbacks);
  trainer.done();
}

/// Reads section `trainer`, or the file that it names, relative to the run file.
void read_trainer(ConfigReader* in, RunConfig* config) {
  const YAML::Node named = in->node()["trainer"];
  if (in->lists_fields() || !named.IsDefined() || !named.IsScalar())
    return read_trainer_keys(in->section("trainer"), config);
  // Mark the key as read, since the section comes from another file.
  (void)in->take("trainer");
  const std::string path = path_beside(in->document(), named.Scalar()).string();
  const YamlDocument document = YamlDocument::load(path, in->faults());
  if (!document.root() || !document.root().IsMap()) return;
  // The digest is among the settings, so ranks with different trainer files are detected.
  config->trainer_sha256 = sha256_hex(files::read(path));
  read_trainer_keys({document.root(), "trainer", document, in->faults()}, config);
}

}  // namespace

RunConfig read_sections(ConfigReader* in, bool needs_train_data) {
  RunConfig config;
  read_version(in);
  std::string preset = "none";
  in->read_choice("preset", &preset, {"none", "estimator", "trainer"},
                  "estimator: defaults of the Estimator framework (docs/flags.md); trainer: "
                  "save, evaluate and export each epoch (docs/evaluation.md)");
  std::vector<std::string> opened;  // already opened, before any section was read
  in->read("plugins", &opened,
           "shared objects with rows for the tables of networks, data sets, modifiers, losses, "
           "metrics and callbacks (docs/plugins.md)");
  // Order: the estimator first, because it decides which keys model and data accept.
  const auto estimator = estimator::Estimator::read(in);
  in->require("run");
  config.run = read_run_options(in->section("run"));
  config.preemption = read_preemption_options(in->section("preemption"));
  config.control = read_control_options(in->section("control"));
  config.model = estimator.read_model(in);
  in->require("data");
  config.data = data::read_data_options(in->section("data"), needs_train_data);
  config.train = train::read_train_options(in->section("train"));
  config.optimizer = optim::read_optimizer_options(in->section("optimizer"));
  config.sync = dist::read_sync_options(in->section("sync"));
  config.watchdog = read_watchdog_options(in->section("watchdog"));
  // One limit for "slow" in the watchdog and in messages of dist.
  config.sync.slow_after_s = config.watchdog.slow_s;
  config.gpu = read_gpu_options(in->section("gpu"));
  config.recipe = recal::read_recipe(in);
  if (in->is_off("checkpoint"))
    config.checkpoint.enabled = false;
  else
    config.checkpoint = checkpoint::read_checkpoint_options(in->section("checkpoint"));
  config.eval = train::read_eval_options(in->section("eval"));
  config.publish = train::read_publish_options(in->section("export"));
  // The best exported model is the one whose checkpoint keep_best would keep.
  if (config.checkpoint.keep_best != "none") config.publish.best_by = config.checkpoint.keep_best;
  config.publish.ema = config.optimizer.ema_decay && config.eval.use_ema.value_or(true);
  config.metrics = metrics::read_metrics_options(in->section("metrics"));
  config.summary = metrics::read_summary_options(in->section("summary"));
  config.callbacks = coord::read_callbacks(in->section("callbacks"));
  read_trainer(in, &config);
  ConfigReader inferer = in->section("inferer");
  config.inferer = infer::read_inferer_section(&inferer);
  inferer.done();
  // The estimator's own values replace those of the sections, so they come last.
  estimator.put_into(&config.data);
  estimator.put_into(&config.train);
  estimator.put_into(&config.hooks);
  return config;
}

void add_all_types() {
  remote::add_stores();
  python::add_types();
  estimator::add_types();
}

/// Removes the rows of a job's plug-ins and estimators from a table.
template <typename Row>
static void keep_rows_of_program(NamedTable<Row>& table) {
  // The static exists once per row type, so once per table.
  static const size_t num_rows = table.num_rows();
  // The first call is before any job, so these rows are the program's own.
  table.keep_first(num_rows);
}

/// Resets LibTorch settings that a job's code may have changed and no run sets.
static void begin_libtorch() {
  // A static: the value at the first call, before any job ran.
  static const caffe2::TypeMeta dtype = c10::get_default_dtype();
  c10::set_default_dtype(dtype);
  c10::GradMode::set_enabled(true);
}

void begin_job() {
  add_all_types();
  keep_rows_of_program(model::model_types());
  keep_rows_of_program(data::dataset_types());
  keep_rows_of_program(recal::modifier_kinds());
  keep_rows_of_program(metrics::step_metrics());
  keep_rows_of_program(train::loss_types());
  keep_rows_of_program(train::eval_metric_types());
  keep_rows_of_program(coord::callback_types());
  keep_rows_of_program(estimator::estimator_types());
  begin_libtorch();
  ProcessState::begin_job();
}

namespace {

/// Applies run.debug, which overrides the keys that contradict it.
void apply_debug(RunConfig* config) {
  if (!config->run.debug) return;
  config->data.shuffle = false;
  if (config->run.deterministic == "false") config->run.deterministic = "true";
  config->warnings.emplace_back(
      "run.debug: samples come in the data set's own order, kernels are deterministic");
}

std::vector<std::string> paths_of(const std::vector<FieldDoc>& fields) {
  std::vector<std::string> paths;
  for (const FieldDoc& field : fields) paths.push_back(field.path);
  return paths;
}

using Text = std::optional<std::string>;  ///< nullopt: read it from the file

/// Loads the document. An empty path means a run of flags alone.
YamlDocument load_document(const std::string& path, const Text& text, Diagnostics* faults) {
  if (path.empty()) return document_of_flags(faults);
  return text ? YamlDocument::parse(path, *text, faults) : YamlDocument::load(path, faults);
}

/// Returns everything that overrides the file, weakest first.
std::vector<Override> all_above(std::vector<Override> environment,
                                const std::vector<Override>& overrides,
                                const std::vector<FieldDoc>& fields) {
  std::vector<Override> all = overrides_of_program();
  std::move(environment.begin(), environment.end(), std::back_inserter(all));
  all.insert(all.end(), overrides.begin(), overrides.end());
  resolve_flags(fields, &all);
  return all;
}

/// Opens the plug-ins and returns the result of open_plugins_of(). Overrides count. Faults of the
/// file are ignored here and found later.
std::vector<std::string> open_plugins(const std::string& path, const Text& text,
                                      const std::vector<Override>& overrides) {
  // Plug-ins add keys and rows, so they must be open before the keys are known. Only these few keys
  // can name one.
  const std::vector<std::string> names = {"plugins",    "model.type",     "model.path",
                                          "model.name", "estimator.path", "estimator.name"};
  Diagnostics ignored;
  YamlDocument document = load_document(path, text, &ignored);
  if (!ignored.empty() || !document.root().IsMap()) return {};
  EnvironmentOverrides all = overrides_from_environment(process_environment(), names);
  all.list.insert(all.list.end(), overrides.begin(), overrides.end());
  apply_overrides(all.list, names, &document, &ignored);
  return estimator::open_plugins_of(document);
}

/// The file, merged with its overrides and defaults.
struct Merged {
  YamlDocument document;
  std::vector<std::string> warnings, notes;
  flags::Values flag_texts;
};

/// Merges file, overrides and defaults. A text that is not YAML has no tree; the root is then null.
/// A duplicate key is a fault, but its first value is used, so that further faults are found.
Merged merge(const std::string& path, const Text& text, const std::vector<Override>& overrides,
             Diagnostics* faults) {
  Merged merged{.document = load_document(path, text, faults), .warnings = {}, .notes = {}};
  YamlDocument& document = merged.document;
  if (faults->empty() && !document.root().IsMap())
    faults->add(document.fault_at(document.root(), "the file must be a map of keys"));
  if (!document.root() || !document.root().IsMap()) return {};
  // Renaming comes first: overrides, presets and readers know only the new names.
  merged.warnings = rename_keys(&document, faults);
  refuse_removed_keys(&document, faults);
  const std::vector<FieldDoc> fields = run_file_fields();
  std::vector<std::string> names = paths_of(fields);
  for (const std::string& former : former_names()) names.push_back(former);
  EnvironmentOverrides above = overrides_from_environment(process_environment(), names);
  above.list = all_above(std::move(above.list), overrides, fields);
  append(rename_keys(&above.list), &above.warnings);
  refuse_removed_keys(&above.list, faults);
  require_known_flags(above.list, fields);
  apply_overrides(above.list, paths_of(fields), &document, faults);
  // Both again, for keys inside maps that overrides added.
  append(rename_keys(&document, faults), &above.warnings);
  refuse_removed_keys(&document, faults);
  append(std::move(above.warnings), &merged.warnings);
  if (path.empty()) {
    apply_overrides(complete_run_of_flags(document.root()), paths_of(fields), &document, faults);
    // Flags that waited for a section of the added data (--image_size) are applied again.
    std::erase_if(above.list, [](const Override& one) { return !one.needs_section; });
    apply_overrides(above.list, paths_of(fields), &document, faults);
  }
  // Defaults apply where neither the file nor an override sets a value.
  apply_overrides(preset_defaults(document.root(), fields), paths_of(fields), &document, faults);
  // Only now is it known which keys these settings read; the rest is dropped with a note.
  const std::vector<FieldDoc> read = fields_read_with(document);
  merged.flag_texts = flag_values(flat_settings(document.root()), read);
  merged.notes = take_unused(read, &document);
  return merged;
}

}  // namespace

RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides,
                          Diagnostics* faults, const std::optional<std::string>& text,
                          bool needs_train_data) {
  add_all_types();
  const std::vector<std::string> plugins = open_plugins(path, text, overrides);
  Merged merged = merge(path, text, overrides, faults);
  const YamlDocument& document = merged.document;
  if (!document.root().IsMap()) return {};

  ConfigReader in(document.root(), "", document, faults);
  RunConfig config = read_sections(&in, needs_train_data);
  in.done();
  config.flag_texts = std::move(merged.flag_texts);
  config.notes = std::move(merged.notes);
  config.file = path;
  config.warnings = std::move(merged.warnings);
  apply_debug(&config);
  const bool has_end = !config.recipe.empty() || config.train.max_steps || config.train.max_epochs;
  if (faults->empty() && !has_end)
    in.fault("train",
             "the length of the training is unknown: give a recipe, train.max_steps or "
             "train.max_epochs");
  // After all sections: it compares settings of different sections.
  refuse_pairs(config, &in);
  config.settings = flat_settings(document.root());
  config.settings.push_back("recipe sha256=" + config.recipe.source_sha256());
  if (!config.trainer_sha256.empty())
    config.settings.push_back("trainer sha256=" + config.trainer_sha256);
  append(plugins, &config.settings);
  return config;
}

RunConfig require_run_config(const std::string& path, const std::vector<Override>& overrides,
                             const std::optional<std::string>& text, bool needs_train_data) {
  Diagnostics faults;
  RunConfig config = load_run_config(path, overrides, &faults, text, needs_train_data);
  faults.throw_if_any("config");
  // Before the caller looks for checkpoints in a store.
  files::set_store_limits(config.data.remote);
  return config;
}

std::string RunConfig::digest() const {
  return sha256_hex(fmt::format("{}", fmt::join(settings, "\n")));
}

}  // namespace lockstep::daemon
