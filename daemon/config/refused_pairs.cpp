#include "daemon/config/refused_pairs.h"

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "daemon/config/overrides.h"

// Combinations of settings that are refused because they involve several sections. Each section's
// own reader refuses what is wrong within the section.
namespace lockstep::daemon {
namespace {

/// Returns where a key's value comes from, " (flag --sync_replicas)"; empty for a default.
std::string origin_of(std::string_view path, const ConfigReader& in) {
  const YamlPair pair = find_at_path(in.node(), path);
  if (!pair.key.IsScalar()) return "";
  return fmt::format(" ({})", in.document().place_text(pair.key.Mark()));
}

/// Appends the origin to `key`: a key of the run file, optionally followed by a colon and its
/// value.
std::string with_origin(std::string_view key, const ConfigReader& in) {
  return fmt::format("{}{}", key, origin_of(key.substr(0, key.find(':')), in));
}

/// Refuses settings that make results depend on the number of ranks.
void refuse_what_is_not_elastic(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used)
      in->fault("run",
                fmt::format("'run.deterministic: elastic'{} cannot be with {}: {}",
                            origin_of("run.deterministic", *in), with_origin(key, *in), why));
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

/// Refuses settings that need the other ranks at every step.
void refuse_with_local_steps(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used)
      in->fault("sync",
                fmt::format("'sync.sync_replicas: false'{} cannot be with {}: {}",
                            origin_of("sync.sync_replicas", *in), with_origin(key, *in), why));
  };
  refuse(config.run.is_elastic(), "run.deterministic: elastic",
         "what each rank learns alone depends on the number of ranks");
  refuse(config.sync.shard_optimizer, "sync.shard_optimizer",
         "a rank that updates alone needs the whole optimizer; set it to false");
  refuse(config.sync.comm_dtype != "fp32", "sync.comm_dtype",
         "gradients do not travel, and means of weights are not rounded; use fp32");
  refuse(config.train.batch_norm == "sync", "train.batch_norm: sync",
         "batches would be normalised over all ranks at every step; use average");
  refuse(config.train.precision == "fp16", "train.precision: fp16",
         "ranks agree on the loss scale at every step; use bf16");
}

/// Refuses settings that need each rank's own weights or messages.
void refuse_with_shared_weights(const RunConfig& config, ConfigReader* in) {
  const auto refuse = [&](bool is_used, const char* key, const char* why) {
    if (is_used)
      in->fault("sync",
                fmt::format("'sync.share_weights: on'{} cannot be with {}: {}",
                            origin_of("sync.share_weights", *in), with_origin(key, *in), why));
  };
  refuse(!config.sync.sync_replicas, "sync.sync_replicas: false",
         "each rank learns weights of its own; set it to true");
  refuse(!config.sync.shared_window, "sync.shared_window: false",
         "the weights lie in such memory; set it to true");
  refuse(config.sync.comm_dtype != "fp32", "sync.comm_dtype",
         "no gradient travels that could be rounded; use fp32");
  refuse(config.run.device == "cuda", "run.device: cuda", "a GPU has its own memory; use cpu");
}

/// Requires what evaluations and exports of checkpoints need: saves and evaluation data.
void require_saves_and_data(const RunConfig& config, ConfigReader* in) {
  const bool saves = config.checkpoint.enabled;
  const auto refuse = [&](bool is_asked, const char* section, const std::string& what) {
    if (is_asked) in->fault(section, what);
  };
  refuse(config.eval.on_save && !saves, "eval",
         "'eval.on_save' evaluates saves, and 'checkpoint: off' makes none");
  refuse((config.eval.on_save || config.publish.after_evaluation) && !config.data.eval, "eval",
         "'eval.on_save' and 'export.after_evaluation' evaluate saves on 'data.eval', which is "
         "missing");
  refuse(config.publish.any() && !saves, "export",
         "section 'export' publishes saves, and 'checkpoint: off' makes none");
  refuse(config.publish.at_end && saves && !config.checkpoint.save_at_end, "export",
         "'export.at_end' publishes the final save, and 'checkpoint.save_at_end' is false");
}

}  // namespace

void refuse_pairs(const RunConfig& config, ConfigReader* in) {
  if (config.run.is_elastic()) refuse_what_is_not_elastic(config, in);
  if (!config.sync.sync_replicas) refuse_with_local_steps(config, in);
  if (config.sync.share_weights == "on") refuse_with_shared_weights(config, in);
  require_saves_and_data(config, in);
  if (config.control.is_on_pages() && config.metrics.access.token_file.empty())
    in->fault("control",
              fmt::format("'control.listen: pages'{} needs 'metrics.token_file': whoever reaches a "
                          "page without one could stop the run and remove its saves",
                          origin_of("control.listen", *in)));
  if (config.train.cuda_graphs == "on" && config.sync.overlap == "true")
    in->fault(
        "train",
        fmt::format("'train.cuda_graphs: on'{} cannot be with {}: in a recorded backward pass "
                    "nobody sees which gradients are there; set one of them to auto",
                    origin_of("train.cuda_graphs", *in), with_origin("sync.overlap", *in)));
  if (config.eval.use_ema.value_or(false) && !config.optimizer.ema_decay)
    in->fault(
        "eval",
        "'eval.use_ema: true' has nothing to evaluate: set optimizer.ema_decay, or remove it");
}

}  // namespace lockstep::daemon
