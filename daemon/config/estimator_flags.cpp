#include "daemon/config/estimator_flags.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/flags.h"

// Flag table, and readers of flags on the command line. The table has the Estimator framework's
// flags in the order of docs/flags.md and --help. A new row also adds the flag to the command line,
// the environment and flags::Frozen.
namespace lockstep::daemon {
namespace {

constexpr std::string_view kStandard = "Standard", kOptimizer = "Optimizer",
                           kRate = "Learning rate", kFineTuning = "Fine-tuning",
                           kSaves = "Checkpoints", kGpu = "GPU";

constexpr Flag kFlags[] = {
    {"model_dir", kStandard, Flag::kText, "run.project_dir", "",
     "folder of the model and of all output of the run"},
    {"warm_start_ckpt", kStandard, Flag::kText, "checkpoint.warm_start_ckpt", "",
     "checkpoint with the initial weights"},
    {"train_metadata", kStandard, Flag::kText, "data.train.path", "",
     "training data: a .csv or .tfrecord file, or a pattern in quotes"},
    {"eval_metadata", kStandard, Flag::kText, "data.eval.path", "", "evaluation data, likewise"},
    {"batch_size", kStandard, Flag::kInteger, "data.batch_size_per_rank", "1",
     "samples per update and rank"},
    {"train_steps", kStandard, Flag::kInteger, "train.max_steps", "20", "number of updates"},
    {"image_size", kStandard, Flag::kInteger, "data.train.image_size", "299",
     "height and width to which images are resized", "data.eval.image_size"},
    {"eval_freq", kStandard, Flag::kInteger, "eval.eval_freq", "5",
     "batches per evaluation (not an interval)", "", "eval_batches"},
    {"eval_throttle_secs", kStandard, Flag::kInteger, "eval.eval_throttle_secs", "120",
     "seconds of training between evaluations"},
    {"debug", kStandard, Flag::kBool, "run.debug", "false", "true: do not shuffle samples"},
    {"weight_decay", kOptimizer, Flag::kNumber, "optimizer.weight_decay", "0.00004",
     "decay of the model's weights"},
    {"optimizer", kOptimizer, Flag::kText, "optimizer.type", "rmsprop",
     "adadelta, adagrad, adam, ftrl, momentum, sgd or rmsprop"},
    {"adadelta_rho", kOptimizer, Flag::kNumber, "optimizer.adadelta_rho", "0.95",
     "adadelta: decay rate"},
    {"adagrad_initial_accumulator_value", kOptimizer, Flag::kNumber,
     "optimizer.adagrad_initial_accumulator_value", "0.1", "adagrad: initial accumulator value"},
    {"adam_beta1", kOptimizer, Flag::kNumber, "optimizer.adam_beta1", "0.9",
     "adam: decay of the first moment"},
    {"adam_beta2", kOptimizer, Flag::kNumber, "optimizer.adam_beta2", "0.999",
     "adam: decay of the second moment"},
    {"opt_epsilon", kOptimizer, Flag::kNumber, "optimizer.opt_epsilon", "1.0",
     "epsilon in the divisor of an update"},
    {"ftrl_learning_rate_power", kOptimizer, Flag::kNumber, "optimizer.ftrl_learning_rate_power",
     "-0.5", "ftrl: exponent of the accumulator in the learning rate"},
    {"ftrl_initial_accumulator_value", kOptimizer, Flag::kNumber,
     "optimizer.ftrl_initial_accumulator_value", "0.1", "ftrl: initial accumulator value"},
    {"ftrl_l1", kOptimizer, Flag::kNumber, "optimizer.ftrl_l1", "0.0", "ftrl: L1 strength"},
    {"ftrl_l2", kOptimizer, Flag::kNumber, "optimizer.ftrl_l2", "0.0", "ftrl: L2 strength"},
    {"momentum", kOptimizer, Flag::kNumber, "optimizer.momentum", "0.9",
     "momentum: momentum coefficient"},
    {"rmsprop_momentum", kOptimizer, Flag::kNumber, "optimizer.rmsprop_momentum", "0.9",
     "rmsprop: momentum coefficient"},
    {"rmsprop_decay", kOptimizer, Flag::kNumber, "optimizer.rmsprop_decay", "0.9",
     "rmsprop: decay of the mean square"},
    {"learning_rate_decay_type", kRate, Flag::kText, "optimizer.learning_rate_decay_type",
     "exponential", "fixed, exponential or polynomial"},
    {"learning_rate", kRate, Flag::kNumber, "optimizer.learning_rate", "0.01",
     "initial learning rate"},
    {"end_learning_rate", kRate, Flag::kNumber, "optimizer.end_learning_rate", "0.0001",
     "polynomial: final learning rate"},
    {"learning_rate_decay_factor", kRate, Flag::kNumber, "optimizer.learning_rate_decay_factor",
     "0.94", "exponential: factor of each decay"},
    {"label_smoothing", kRate, Flag::kNumber, "train.label_smoothing", "0.0", "label smoothing"},
    {"num_epochs_per_decay", kRate, Flag::kNumber, "optimizer.num_epochs_per_decay", "2.0",
     "exponential: epochs between decays; polynomial: epochs of decay"},
    {"sync_replicas", kRate, Flag::kBool, "sync.sync_replicas", "false",
     "true: synchronous steps with averaged gradients"},
    {"replicas_to_aggregate", kRate, Flag::kInteger, "train.replicas_to_aggregate", "1",
     "micro-batches per update and rank"},
    {"trainable_scopes", kFineTuning, Flag::kList, "train.trainable_scopes", "",
     "prefixes of trained variables; default all"},
    {"checkpoint_exclude_scopes", kFineTuning, Flag::kList, "checkpoint.checkpoint_exclude_scopes",
     "", "prefixes of variables that warm_start_ckpt does not fill"},
    {"checkpoint_restore_scopes", kFineTuning, Flag::kList, "checkpoint.checkpoint_restore_scopes",
     "", "prefixes of variables that warm_start_ckpt fills; default all"},
    {"save_summary_steps", kSaves, Flag::kInteger, "summary.save_summary_steps", "100",
     "steps between points of the curves"},
    {"save_checkpoints_steps", kSaves, Flag::kInteger, "checkpoint.save_checkpoints_steps", "",
     "updates between saves; excludes save_checkpoints_secs"},
    {"save_checkpoints_secs", kSaves, Flag::kInteger, "checkpoint.save_checkpoints_secs", "",
     "seconds between saves; excludes save_checkpoints_steps"},
    {"keep_checkpoint_max", kSaves, Flag::kInteger, "checkpoint.keep_checkpoint_max", "5",
     "newest checkpoints to keep; -1: all"},
    {"allow_growth", kGpu, Flag::kBool, "gpu.allow_growth", "",
     "true: allocate GPU memory as needed"},
    {"per_process_gpu_memory_fraction", kGpu, Flag::kNumber, "gpu.per_process_gpu_memory_fraction",
     "", "maximum share of the GPU's memory for a process"},
    {"memory_policy", kGpu, Flag::kText, "gpu.memory_policy", "",
     "default: allocate memory as needed; all: allocate it at the start"},
};

}  // namespace

std::span<const Flag> flag_table() { return kFlags; }

// The table has fewer than 50 rows, so a linear search is enough.
const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : kFlags)
    if (flag.name == name || (!flag.alias.empty() && flag.alias == name)) return &flag;
  return nullptr;
}

std::string_view kind_text(Flag::Kind kind) {
  constexpr std::string_view kTexts[] = {"string", "comma-separated strings", "integer", "number",
                                         "true or false"};  // in the order of Flag::Kind
  return kTexts[kind];
}

std::string flags_reference() {
  std::string text =
      "| flag | key of the run file | type | with the preset | meaning |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const Flag& flag : kFlags) {
    const std::string alias = flag.alias.empty() ? "" : fmt::format(", `--{}`", flag.alias);
    const std::string second =
        flag.second_path.empty() ? "" : fmt::format(", `{}`", flag.second_path);
    text +=
        fmt::format("| `--{}`{} | `{}`{} | {} | {} | {} |\n", flag.name, alias, flag.path, second,
                    kind_text(flag.kind), flag.preset.empty() ? "none" : flag.preset, flag.help);
  }
  return text;
}

constexpr std::string_view kSection = "estimator.";

static bool is_flag_word(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

static Error usage(const std::string& message) { return {ExitCode::kUsage, "usage", message}; }

/// Returns the flags that may follow `--`: --width, --depth.
static std::vector<std::string> flag_names(const std::vector<FieldDoc>& fields) {
  std::vector<std::string> names;
  for (const FieldDoc& field : fields)
    if (field.path.starts_with(kSection) && field.path != "estimator.path" &&
        field.path != "estimator.name")
      names.push_back("--" + field.path.substr(kSection.size()));
  return names;
}

std::vector<std::string> take_flags(int* argc, char** argv) {
  // The words stay in argv; only argc changes, so that CLI11 does not see them.
  char** const end = argv + *argc;
  char** const mark = std::find(argv, end, std::string_view("--"));
  *argc = static_cast<int>(mark - argv);
  return mark == end ? std::vector<std::string>() : std::vector<std::string>(mark + 1, end);
}

std::vector<Override> parse_flags(const std::vector<std::string>& words) {
  std::vector<Override> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_flag_word(words[i]) || words[i].starts_with("--="))
      throw usage(
          fmt::format("flags of the estimator go after --, as -- --width 64; '{}' is not a flag",
                      printable(words[i])));
    const size_t mark = words[i].find('=');
    const std::string name = words[i].substr(2, mark == std::string::npos ? mark : mark - 2);
    std::string value = "true";
    if (mark != std::string::npos) value = words[i].substr(mark + 1);
    // A following word that is not a flag is the value; otherwise the flag alone means true.
    else if (i + 1 < words.size() && !is_flag_word(words[i + 1]))
      value = words[++i];
    const std::string path = std::string(kSection) + name;
    if (std::any_of(flags.begin(), flags.end(),
                    [&](const Override& other) { return other.path == path; }))
      throw usage(fmt::format("flag --{} is given twice", printable(name)));
    flags.push_back({.path = path, .value = value, .origin = "flag --" + name, .is_flag = true});
  }
  return flags;
}

std::vector<Override> overrides_of(const AboveFile& above) {
  std::vector<Override> all;
  for (const std::string& text : above.sets) all.push_back(parse_set(text));
  if (!above.estimator.empty())
    all.push_back(
        {.path = "estimator.path", .value = quoted_text(above.estimator), .origin = "--estimator"});
  for (Override& flag : parse_flags(above.flags)) all.push_back(std::move(flag));
  return all;
}

std::vector<Override> overrides_of_program() {
  std::vector<Override> all;
  for (const auto& [name, value] : flags::given())
    // Marked as from the environment: the command line overrides values from the program's own
    // code.
    all.push_back({.path = std::string(kSection) + name,
                   .value = value,
                   .origin = "flags::set " + name,
                   .from_environment = true,
                   .is_flag = true});
  return all;
}

void require_known_flags(const std::vector<Override>& overrides,
                         const std::vector<FieldDoc>& fields) {
  // Flags of the flag table were resolved before; a remaining one must be a key of the estimator.
  const std::vector<std::string> names = flag_names(fields);
  for (const Override& one : overrides) {
    if (!one.is_flag) continue;
    const std::string name = "--" + one.path.substr(kSection.size());
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::string there = "no estimator with flags is named: give --estimator=LIB";
    if (!names.empty()) there = fmt::format("available: {}", fmt::join(names, ", "));
    std::vector<std::string> all = names;
    for (const Flag& flag : flag_table()) all.push_back(fmt::format("--{}", flag.name));
    throw usage(
        fmt::format("unknown flag {}{}; {}", printable(name), did_you_mean(name, all), there));
  }
}

}  // namespace lockstep::daemon
