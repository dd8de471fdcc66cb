// Reader of section `checkpoint`, rules for names, and the schedule of saves.
#include "checkpoint/checkpoint_options.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <re2/re2.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files/store.h"
#include "checkpoint/format/checkpoint_files.h"

namespace lockstep::checkpoint {

// Section `checkpoint`. Values that contradict each other are faults of the run file, not of the
// run.

namespace {

/// Divides a prefix in an object store into folder and file name.
void divide_prefix(CheckpointOptions* options, ConfigReader* in) {
  std::string& prefix = options->prefix;
  const size_t bucket = prefix.find("://") + 3, slash = prefix.rfind('/');
  bool is_store = true;
  try {
    (void)files::writable_store_of(prefix);
  } catch (const Error&) {
    is_store = false;
  }
  if (!is_store || slash <= bucket) {
    in->fault("prefix", fmt::format("'checkpoint.prefix' is {}: in an object store it has a scheme "
                                    "(s3, gs), a bucket and a file name, "
                                    "s3://BUCKET/FOLDER/model.ckpt",
                                    prefix));
    prefix = "model.ckpt";  // no second fault
    return;
  }
  options->store_folder = prefix.substr(0, slash);
  prefix.erase(0, slash + 1);
}

void check_prefix(const CheckpointOptions& options, ConfigReader* in) {
  const std::string& prefix = options.prefix;
  if (prefix.empty())
    in->fault("prefix",
              fmt::format("'checkpoint.prefix' {}",
                          options.store_folder.empty() ? "is empty" : "has no file name"));
  else if (prefix.find('/') != std::string::npos)
    in->fault("prefix",
              "'checkpoint.prefix' is a file name without / (the folder is run.project_dir), or "
              "s3://BUCKET/FOLDER/NAME or gs://... in an object store");
  else if (const auto fault = fault_of_prefix_name(prefix))
    in->fault("prefix", fmt::format("'checkpoint.prefix' {}", *fault));
}

// The parts are those by which the trainer chooses the state to save.
void check_include(const std::vector<std::string>& include, ConfigReader* in) {
  static const std::vector<std::string> kParts = {"model", "optimizer", "modifiers", "clock",
                                                  "random"};
  for (const std::string& part : include)
    if (std::find(kParts.begin(), kParts.end(), part) == kParts.end())
      in->fault("include", fmt::format("'checkpoint.include' contains '{}'; available: {}{}", part,
                                       fmt::join(kParts, ", "), did_you_mean(part, kParts)));
  if (std::find(include.begin(), include.end(), "model") == include.end())
    in->fault("include", "'checkpoint.include' lacks model, which every checkpoint needs");
}

}  // namespace

bool CheckpointOptions::includes(std::string_view part) const {
  return std::find(include.begin(), include.end(), part) != include.end();
}

std::filesystem::path CheckpointOptions::folder(const Project& project) const {
  return store_folder.empty() ? project.checkpoints() : std::filesystem::path(store_folder);
}

std::filesystem::path CheckpointOptions::copies_folder(const Project& project) const {
  if (store_folder.empty() || !copy_on_hosts) return {};
  // s3://bucket/run gives s3%2Fbucket%2Frun: another prefix is another run.
  const std::string path = std::string(store_folder).replace(store_folder.find("://"), 3, "/");
  std::string name;
  for (const char letter : path)
    name += letter == '%' ? "%25" : letter == '/' ? "%2F" : std::string(1, letter);
  return project.host_copies() / name;
}

CheckpointOptions read_checkpoint_options(ConfigReader in) {
  CheckpointOptions options;
  in.read(
      "prefix", &options.prefix,
      "file name of checkpoints; the step is appended: model.ckpt-1200; with s3://BUCKET/FOLDER/ "
      "or gs:// before it they are in an object store, and hosts need no shared folder");
  in.read("save_checkpoints_steps", &options.save_checkpoints_steps, count_from(1),
          "updates between saves; excludes save_checkpoints_secs");
  in.read("save_checkpoints_secs", &options.save_checkpoints_secs, at_least(1),
          "seconds between saves; default 600 without save_checkpoints_steps");
  in.read("keep_checkpoint_max", &options.keep_checkpoint_max, at_least(-1),
          "newest checkpoints to keep; -1: all; 0 is refused");
  in.read("save_at_end", &options.save_at_end, "save at the end of training");
  in.read("keep_every", &options.keep_every, count_from(0),
          "keep checkpoints at multiples of this step forever; 0: none");
  in.read_choice("keep_best", &options.keep_best, {"none", "eval.accuracy", "eval.loss"},
                 "keep the checkpoint with the best evaluation forever");
  in.read("include", &options.include,
          "contents: model, optimizer, modifiers (masks, quantization), clock (step, data "
          "position), random; resume needs clock, and with pruning or quantization modifiers");
  in.read("sparse", &options.sparse,
          "store only kept values and mask bits of pruned weights, their moments and averages");
  in.read_choice("wait_for", &options.wait_for, {"update", "staging", "commit"},
                 "when a save lets training continue: after the copy to memory at the next update "
                 "(update) or at once (staging), or after the commit");
  in.read("copy_on_hosts", &options.copy_on_hosts,
          "checkpoints in an object store: keep each host's shards of the newest one in "
          "run.project_dir/host_copies; restarts read them first, even if the store lacks that "
          "checkpoint");
  in.read("timeout_s", &options.timeout_s, more_than(0),
          "longest wait for other ranks in a save, in seconds; until the copy to memory is done "
          "at most sync.timeout_s");
  options.warm_start = read_warm_start_options(&in);
  if (files::is_remote(options.prefix)) divide_prefix(&options, &in);
  check_prefix(options, &in);
  check_include(options.include, &in);
  // keep_checkpoint_max 0 is refused, because the newest checkpoint must stay for a resume.
  if (options.keep_checkpoint_max == 0)
    in.fault("keep_checkpoint_max",
             "'checkpoint.keep_checkpoint_max' is 0, which would keep no checkpoint; -1 keeps all");
  if (options.save_checkpoints_steps && options.save_checkpoints_secs)
    in.fault("save_checkpoints_secs",
             "'checkpoint.save_checkpoints_secs' and 'checkpoint.save_checkpoints_steps' are both "
             "given: remove one");
  in.done();
  return options;
}

// Keys of a warm start. They are in section `checkpoint` of the run file, next to those of saving.

WarmStartOptions read_warm_start_options(ConfigReader* in) {
  WarmStartOptions options;
  const bool is_named = in->read(
      "warm_start_ckpt", &options.warm_start_ckpt,
      "initial weights of a new run: checkpoint (Lockstep's, TensorFlow's) or a folder of them, "
      ".safetensors file, folder of save_pretrained(), PyTorch state dict (.pt, .pth; never "
      "executed)");
  if (is_named && options.warm_start_ckpt.empty())
    in->fault("warm_start_ckpt",
              "'checkpoint.warm_start_ckpt' is empty: name a checkpoint, or remove the key");
  options.checkpoint_restore_scopes =
      NameScopes::read(in, "checkpoint_restore_scopes",
                       "prefixes of variables that warm_start_ckpt fills, as a list or "
                       "comma-separated; default all");
  options.checkpoint_exclude_scopes =
      NameScopes::read(in, "checkpoint_exclude_scopes",
                       "prefixes of variables that warm_start_ckpt does not fill; overrides "
                       "checkpoint_restore_scopes");
  in->read_choice("warm_start_kernels", &options.warm_start_kernels,
                  {"auto", "lockstep", "tensorflow"},
                  "dimension order of linear and convolution weights in warm_start_ckpt: "
                  "lockstep: [outputs, inputs, ...] as in PyTorch; tensorflow: [..., inputs, "
                  "outputs]; auto: tensorflow for kernels of a TensorFlow checkpoint");
  options.warm_start_rename = RenameRules::read(
      in, "warm_start_rename",
      "names in warm_start_ckpt to names of this model: `from`: a name, or re: and a pattern of "
      "its beginning; `to`: may use \\1; first match wins; also a map {dense_1: classifier}");
  // Scopes and rules without a file are a mistake, for instance a forgotten key.
  const bool says_what = !options.checkpoint_restore_scopes.empty() ||
                         !options.checkpoint_exclude_scopes.empty() || in->has("warm_start_rename");
  if (says_what && !is_named && options.warm_start_ckpt.empty())
    in->fault("warm_start_ckpt",
              "'checkpoint.checkpoint_restore_scopes', 'checkpoint_exclude_scopes' and "
              "'warm_start_rename' need 'checkpoint.warm_start_ckpt'");
  return options;
}

// RenameRules: rules are checked when the run file is read, so a bad pattern is reported there.

constexpr std::string_view kRegexStart = "re:";
// \0 to \9: RE2 rewrites name groups by one digit.
constexpr int kMostGroups = 10;

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// Returns the rules as written; nullopt if the node is neither a list nor a map of rules.
static std::optional<Pairs> pairs_of(const YAML::Node& node) {
  Pairs pairs;
  if (node.IsMap()) {
    for (const auto& pair : node) {
      if (!pair.first.IsScalar() || !pair.second.IsScalar()) return std::nullopt;
      pairs.emplace_back(pair.first.Scalar(), pair.second.Scalar());
    }
    // In a map the order of keys means nothing, so the longest `from` has priority.
    std::ranges::stable_sort(pairs, std::greater(),
                             [](const auto& pair) { return pair.first.size(); });
    return pairs;
  }
  if (!node.IsSequence()) return std::nullopt;
  for (const YAML::Node& rule : node) {
    if (!rule.IsMap() || rule.size() != 2 || !rule["from"] || !rule["to"] ||
        !rule["from"].IsScalar() || !rule["to"].IsScalar())
      return std::nullopt;
    pairs.emplace_back(rule["from"].Scalar(), rule["to"].Scalar());
  }
  return pairs;
}

constexpr std::string_view kModelPart = "model";

/// Returns "/" + the rest of a name below `model`, for a rule whose `from` is exactly `model`.
static std::optional<std::string> behind_model(const std::string& name) {
  const bool is_part = name.starts_with("model/") || name.starts_with("model.");
  return is_part ? std::optional("/" + plain_name(name)) : std::nullopt;
}

/// Removes the leading slash or dot that a removed part leaves.
static std::string cleaned(const std::string& name) {
  const size_t begin = name.find_first_not_of("/.");
  return plain_name(begin == std::string::npos ? "" : name.substr(begin));
}

RenameRules::Rule RenameRules::make_rule(const std::string& from, const std::string& to,
                                         std::string* fault) {
  Rule rule{from, to, nullptr};
  if (!from.starts_with(kRegexStart)) {
    const std::string trimmed = from.substr(0, from.find_last_not_of("./") + 1);
    rule.from = plain_name(trimmed);
    rule.is_model_alone = trimmed == kModelPart;
    if (rule.from.empty()) *fault = "has an empty name as 'from'";
    return rule;
  }
  re2::RE2::Options quiet;
  quiet.set_log_errors(false);
  rule.pattern = std::make_shared<const re2::RE2>(from.substr(kRegexStart.size()), quiet);
  std::string why;
  if (!rule.pattern->ok())
    *fault = fmt::format("has '{}', which is not a regular expression (RE2): {}", from,
                         rule.pattern->error());
  else if (!rule.pattern->CheckRewriteString(to, &why))
    *fault = fmt::format("has '{}', which cannot follow '{}': {}", to, from, why);
  return rule;
}

RenameRules RenameRules::read(ConfigReader* in, std::string_view key, std::string_view help) {
  RenameRules rules;
  const YAML::Node node = in->take(key, "list of {from, to}", help);
  if (!node.IsDefined()) return rules;
  const std::optional<Pairs> pairs = pairs_of(node);
  if (!pairs)
    in->fault(key, fmt::format("'{}.{}' must be a list of {{from: NAME, to: NAME}}, or a map from "
                               "names in the checkpoint to names of this model",
                               in->path(), key));
  for (const auto& [from, to] : pairs.value_or(Pairs{})) {
    std::string fault;
    rules.rules_.push_back(make_rule(from, to, &fault));
    if (!fault.empty()) in->fault(key, fmt::format("'{}.{}' {}", in->path(), key, fault));
  }
  return rules;
}

std::optional<std::string> RenameRules::renamed_by(const Rule& rule, const std::string& name) {
  if (!rule.pattern) {
    const std::string plain = plain_name(name);
    if (plain == rule.from || plain.starts_with(rule.from + "/"))
      return rule.to + plain.substr(rule.from.size());
    const auto behind = rule.is_model_alone ? behind_model(name) : std::nullopt;
    return behind ? std::optional(rule.to + *behind) : std::nullopt;
  }
  re2::StringPiece groups[kMostGroups];
  if (!rule.pattern->Match(name, 0, name.size(), re2::RE2::ANCHOR_START, groups, kMostGroups))
    return std::nullopt;
  std::string start;
  if (!rule.pattern->Rewrite(&start, rule.to, groups, kMostGroups)) return std::nullopt;
  return start + name.substr(groups[0].size());
}

std::optional<RenameRules::Renamed> RenameRules::apply(const std::string& name) const {
  for (size_t i = 0; i < rules_.size(); ++i)
    if (const auto renamed = renamed_by(rules_[i], name)) return Renamed{i, cleaned(*renamed)};
  return std::nullopt;
}

// SaveSchedule: due_here() has no side effects, so every rank may ask at any time.

double SaveSchedule::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

SaveSchedule::SaveSchedule(const CheckpointOptions& options, dist::Communicator& control,
                           Clock clock_s)
    : enabled_(options.enabled),
      every_steps_(options.save_checkpoints_steps.value_or(0)),
      every_s_(static_cast<double>(
          options.save_checkpoints_secs.value_or(CheckpointOptions::kDefaultSecs))),
      control_(control),
      clock_s_(std::move(clock_s)),
      last_s_(clock_s_()) {}

bool SaveSchedule::due_here(int64_t step) const {
  if (!enabled_) return false;
  if (every_steps_ > 0) return step > 0 && step % every_steps_ == 0;
  return control_.rank() == 0 && clock_s_() - last_s_ >= every_s_;
}

}  // namespace lockstep::checkpoint
