#include "daemon/config/run_config.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/digest.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/key_names.h"
#include "daemon/config/renamed_keys.h"
#include "estimator/estimator.h"
#include "estimator/open_plugin.h"
#include "python/add_types.h"
#include "recal/recipe/recal_options.h"
#include "remote/add_stores.h"

namespace lockstep::daemon {
namespace {

void read_version(ConfigReader* in) {
  std::string version = "1.0.0";
  in->read("version", &version, "of the run file's grammar");
  if (version.rfind("1.", 0) != 0)
    in->fault("version", "this program reads version 1.x of the run file, not '" + version + "'");
}

RunConfig read_sections(ConfigReader* in) {
  RunConfig config;
  read_version(in);
  std::vector<std::string> opened;  // before anything was read
  in->read("plugins", &opened,
           "shared objects that add rows to the tables of networks, data sets, modifiers, losses, "
           "metrics and callbacks (docs/plugins.md); also looked for beside the run file");
  const auto estimator = estimator::Estimator::read(in);
  in->require("run");
  config.run = read_run_options(in->section("run"));
  config.model = estimator.read_model(in);
  in->require("data");
  config.data = data::read_data_options(in->section("data"));
  config.train = train::read_train_options(in->section("train"));
  config.optimizer = optim::read_optimizer_options(in->section("optimizer"));
  config.sync = dist::read_sync_options(in->section("sync"));
  config.recipe = recal::read_recipe(in);
  if (in->is_off("checkpoint"))
    config.checkpoint.enabled = false;
  else
    config.checkpoint = checkpoint::read_checkpoint_options(in->section("checkpoint"));
  config.eval = train::read_eval_options(in->section("eval"));
  config.metrics = metrics::read_metrics_options(in->section("metrics"));
  config.summary = metrics::read_summary_options(in->section("summary"));
  config.callbacks = train::read_callbacks(in->section("callbacks"));
  estimator.put_into(&config.data);
  estimator.put_into(&config.train);
  estimator.put_into(&config.callbacks);
  return config;
}

void add_types() {
  remote::add_stores();
  python::add_types();
  estimator::add_types();
}

bool has_an_end(const RunConfig& config) {
  return !config.recipe.empty() || config.train.max_steps || config.train.max_epochs;
}

std::vector<FieldDoc> fields_of(const std::string& text) {
  Diagnostics ignored;
  std::vector<FieldDoc> docs;
  const YamlDocument document = YamlDocument::parse("", text, &ignored);
  ConfigReader in(document.root(), "", document, &ignored, &docs);
  (void)read_sections(&in);
  return docs;
}

bool is_listed(const std::vector<FieldDoc>& docs, const FieldDoc& field) {
  return std::any_of(docs.begin(), docs.end(), [&](const FieldDoc& other) {
    return other.path == field.path && other.help == field.help;
  });
}

std::string section_prefix(const std::string& path) { return path.substr(0, path.rfind('.') + 1); }

/// Behind the last key of its section.
void insert(const FieldDoc& field, std::vector<FieldDoc>* docs) {
  const auto last = std::find_if(docs->rbegin(), docs->rend(), [&](const FieldDoc& other) {
    return section_prefix(other.path) == section_prefix(field.path);
  });
  docs->insert(last == docs->rend() ? docs->end() : last.base(), field);
}

/// {a: {b: value}} of a.b.
std::string nested(const std::string& path, const std::string& value) {
  std::string text = "{" + path;
  size_t depth = 1;
  for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.'), ++depth)
    text.replace(dot, 1, ": {");
  return text + ": " + value + std::string(depth, '}');
}

std::vector<FieldDoc> collect_fields() {
  std::vector<FieldDoc> docs = fields_of("{data: {eval: {}}}");
  for (size_t i = 0; i < docs.size(); ++i) {
    const FieldDoc field = docs[i];
    for (const std::string& choice : field.choices)  // each may have keys of its own
      for (const FieldDoc& other : fields_of(nested(field.path, choice))) {
        if (is_listed(docs, other)) continue;
        insert(other, &docs);
        i = static_cast<size_t>(-1);  // which may have choices: begin anew
      }
  }
  return docs;
}

void append(std::vector<std::string> more, std::vector<std::string>* list) {
  std::move(more.begin(), more.end(), std::back_inserter(*list));
}

std::vector<std::string> field_paths() {
  std::vector<std::string> paths;
  for (const FieldDoc& field : run_file_fields()) paths.push_back(field.path);
  return paths;
}

}  // namespace

std::vector<FieldDoc> run_file_meanings() {
  add_types();
  static std::map<size_t, std::vector<FieldDoc>> docs;  // each plug-in may add rows with keys
  const size_t num_plugins = estimator::opened_plugins().size();
  if (!docs.contains(num_plugins)) docs[num_plugins] = collect_fields();
  return docs[num_plugins];
}

std::vector<FieldDoc> run_file_fields() {
  std::vector<FieldDoc> once;
  std::set<std::string> seen;
  for (const FieldDoc& field : run_file_meanings())
    if (seen.insert(field.path).second) once.push_back(field);
  return once;
}

namespace {

/// What run.debug stands for; it stands above the keys that say otherwise.
void apply_debug(RunConfig* config) {
  if (!config->run.debug) return;
  config->data.shuffle = false;
  if (config->run.deterministic == "false") config->run.deterministic = "true";
  config->warnings.emplace_back(
      "run.debug: samples come in the data set's own order, kernels are deterministic");
}

/// What makes results depend on the number of ranks.
void refuse_what_is_not_elastic(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used)
      in->fault("run", fmt::format("'run.deterministic: elastic' cannot be with {}: {}", key, why));
  };
  refuse(config.run.device == "cuda", "run.device: cuda",
         "on GPUs sums over ranks are in NCCL's order; use cpu");
  refuse(config.sync.comm_dtype != "fp32", "sync.comm_dtype",
         "one rank alone rounds nothing; use fp32");
  refuse(config.sync.shard_optimizer, "sync.shard_optimizer", "set it to false");
  refuse(config.train.batch_norm != "average", "train.batch_norm",
         "only average takes all ranks' samples, shard by shard");
  refuse(config.data.batch_size_per_rank.has_value(), "data.batch_size_per_rank",
         "the batch would grow with the ranks; use data.global_batch_size");
}

}  // namespace

/// What open_plugins_of() returns, with the overrides. Faults of the file are found later.
std::vector<std::string> open_plugins(const std::string& path,
                                      const std::vector<Override>& overrides) {
  const std::vector<std::string> names = {"plugins",    "model.type",     "model.path",
                                          "model.name", "estimator.path", "estimator.name"};
  Diagnostics ignored;
  YamlDocument document = YamlDocument::load(path, &ignored);
  if (!ignored.empty() || !document.root().IsMap()) return {};
  EnvironmentOverrides all = overrides_from_environment(process_environment(), names);
  all.list.insert(all.list.end(), overrides.begin(), overrides.end());
  apply_overrides(all.list, names, &document, &ignored);
  return estimator::open_plugins_of(document);
}

RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides,
                          Diagnostics* faults) {
  add_types();
  const std::vector<std::string> plugins = open_plugins(path, overrides);
  YamlDocument document = YamlDocument::load(path, faults);
  if (faults->empty() && !document.root().IsMap())
    faults->add(document.fault_at(document.root(), "the file must be a map of keys"));
  if (!faults->empty()) return {};  // no tree to read
  std::vector<std::string> warnings = rename_keys(&document, faults);
  std::vector<std::string> names = field_paths();
  for (const std::string& former : former_names()) names.push_back(former);
  EnvironmentOverrides all = overrides_from_environment(process_environment(), names);
  all.list.insert(all.list.end(), overrides.begin(), overrides.end());
  append(rename_keys(&all.list), &all.warnings);
  require_known_flags(all.list, run_file_fields());
  apply_overrides(all.list, field_paths(), &document, faults);
  append(rename_keys(&document, faults), &all.warnings);  // in maps that overrides gave
  append(std::move(all.warnings), &warnings);

  ConfigReader in(document.root(), "", document, faults);
  RunConfig config = read_sections(&in);
  in.done();
  config.file = path;
  config.warnings = std::move(warnings);
  apply_debug(&config);
  if (faults->empty() && !has_an_end(config))
    in.fault("train",
             "nothing says how long to train: give a recipe, train.max_steps or train.max_epochs");
  if (config.run.is_elastic()) refuse_what_is_not_elastic(config, &in);
  config.settings = flat_settings(document.root());
  config.settings.push_back("recipe sha256=" + config.recipe.source_sha256());
  append(plugins, &config.settings);
  return config;
}

std::string RunConfig::digest() const {
  return sha256_hex(fmt::format("{}", fmt::join(settings, "\n")));
}

}  // namespace lockstep::daemon
