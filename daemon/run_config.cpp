#include "daemon/run_config.h"

#include <fmt/format.h>

#include "base/digest.h"
#include "recal/recal_options.h"

namespace lockstep::daemon {
namespace {

void read_version(YamlFields* in) {
  std::string version = "1.0.0";
  in->read("version", &version, "of the run file's grammar");
  if (version.rfind("1.", 0) != 0)
    in->fault("version", "this program reads version 1.x of the run file, not '" + version + "'");
}

RunConfig read_sections(YamlFields* in) {
  RunConfig config;
  read_version(in);
  in->require("run");
  config.run = read_run_options(in->section("run"));
  config.model = model::read_model_options(in->section("model"));
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
  return config;
}

bool has_an_end(const RunConfig& config) {
  return !config.recipe.empty() || config.train.max_steps || config.train.max_epochs;
}

std::vector<std::string> field_paths() {
  std::vector<std::string> paths;
  for (const FieldDoc& field : run_file_fields()) paths.push_back(field.path);
  return paths;
}

}  // namespace

std::vector<FieldDoc> run_file_fields() {
  std::vector<FieldDoc> docs;
  // Some keys exist only for one type; each such type is read once, and a key is listed where it is
  // first met.
  for (const char* text :
       {"{data: {eval: {}}}",
        "{model: {type: mlp}, data: {train: {type: random}}, optimizer: {type: momentum}}",
        "{model: {type: cnn}, optimizer: {type: adam, learning_rate_decay_type: exponential}}",
        "{optimizer: {learning_rate_decay_type: polynomial}}"}) {
    Faults ignored;
    std::vector<FieldDoc> some;
    const YamlDocument document = YamlDocument::parse("", text, &ignored);
    YamlFields in(document.root(), "", document, &ignored, &some);
    (void)read_sections(&in);
    for (FieldDoc& field : some) {
      const bool known = std::any_of(docs.begin(), docs.end(), [&](const FieldDoc& other) {
        return other.path == field.path;
      });
      if (!known) docs.push_back(std::move(field));
    }
  }
  return docs;
}

namespace {

/// What makes results depend on the number of ranks.
void refuse_what_is_not_elastic(const RunConfig& config, YamlFields* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used)
      in->fault("run", fmt::format("'run.deterministic: elastic' cannot be with {}: {}", key, why));
  };
  refuse(config.run.device == "cuda", "run.device: cuda",
         "on GPUs sums over ranks are in NCCL's order; use cpu");
  refuse(config.sync.wire != "fp32", "sync.wire", "one rank alone rounds nothing; use fp32");
  refuse(config.sync.shard_optimizer, "sync.shard_optimizer", "set it to false");
  refuse(config.train.batch_norm != "average", "train.batch_norm",
         "only average takes all ranks' samples, shard by shard");
  refuse(config.data.batch_size_per_rank.has_value(), "data.batch_size_per_rank",
         "the batch would grow with the ranks; use data.global_batch_size");
}

}  // namespace

RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides,
                          Faults* faults) {
  YamlDocument document = YamlDocument::load(path, faults);
  if (faults->empty() && !document.root().IsMap())
    faults->add(document.fault_at(document.root(), "the file must be a map of keys"));
  if (!faults->empty()) return {};  // no tree to read
  std::vector<Override> all = overrides_from_environment(field_paths());
  all.insert(all.end(), overrides.begin(), overrides.end());
  std::vector<std::string> origins;
  for (const Override& one : all) {
    apply_override(one, document.root(), faults);
    origins.push_back(one.origin);
  }
  document.set_origin_of_additions(fmt::format("{}", fmt::join(origins, ", ")));

  YamlFields in(document.root(), "", document, faults);
  RunConfig config = read_sections(&in);
  in.done();
  config.file = path;
  if (faults->empty() && !has_an_end(config))
    in.fault("train",
             "nothing says how long to train: give a recipe, train.max_steps or train.max_epochs");
  if (config.run.is_elastic()) refuse_what_is_not_elastic(config, &in);
  config.settings = flat_settings(document.root());
  config.settings.push_back("recipe sha256=" + config.recipe.source_sha256());
  return config;
}

std::string RunConfig::digest() const {
  return sha256_hex(fmt::format("{}", fmt::join(settings, "\n")));
}

}  // namespace lockstep::daemon
