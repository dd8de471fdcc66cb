#include "daemon/config/preset.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <CLI/CLI.hpp>

#include "base/diagnostics.h"
#include "base/error.h"

namespace lockstep::daemon {
namespace {

constexpr const char* kPresetOrigin = "preset: estimator";
constexpr std::string_view kEstimator = "estimator.";

/// Default that is dropped if another key is set.
struct StepsAside {
  std::string_view path, for_path;
};
constexpr StepsAside kStepsAside[] = {{"data.batch_size_per_rank", "data.global_batch_size"},
                                      {"train.max_steps", "train.max_epochs"},
                                      {"train.max_steps", "recipe"},
                                      {"train.max_steps", "modifiers"},
                                      {"eval.eval_freq", "eval.eval_batches"},
                                      {"eval.eval_freq", "data.global_batch_size"}};

/// Converts a text to the form of its kind; nullopt if it is not of that kind.
std::optional<std::string> as_kind(Flag::Kind kind, const std::string& value) {
  if (kind == Flag::kBool) {
    const std::optional<bool> truth = parse_bool(value);
    if (!truth) return std::nullopt;
    return *truth ? "true" : "false";
  }
  if (kind == Flag::kInteger && !parse_integer(value)) return std::nullopt;
  if (kind == Flag::kNumber && !parse_number(value)) return std::nullopt;
  return value;
}

/// Returns the last folder name: models for ./models/ and gs://bucket/models.
std::string folder_name(const std::string& folder) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path == "." || path == ".." || path.filename() == "..")
    path = std::filesystem::absolute(path).lexically_normal();
  return path.filename().string();
}

Override default_of(std::string path, const std::string& value, std::string origin) {
  return {.path = std::move(path),
          .value = quoted_text(value),
          .origin = std::move(origin),
          .is_default = true};
}

const FieldDoc* find_field(const std::vector<FieldDoc>& fields, std::string_view path) {
  const auto found = std::ranges::find(fields, path, &FieldDoc::path);
  return found == fields.end() ? nullptr : &*found;
}

/// True if the run file has the key and accepts the preset's value for it.
bool is_known(const Flag& flag, std::string_view path, const std::vector<FieldDoc>& fields) {
  const FieldDoc* field = find_field(fields, path);
  return field != nullptr &&
         (field->choices.empty() || std::ranges::count(field->choices, flag.preset) > 0);
}

bool has_preset(const YAML::Node& root, std::string_view name) {
  const YamlPair preset = find_at_path(root, "preset");
  return preset.value.IsScalar() && preset.value.Scalar() == name;
}

/// True if the path is set to something other than null.
bool has_key(const YAML::Node& root, std::string_view path) {
  const YamlPair pair = find_at_path(root, path);
  return pair.key.IsScalar() && !pair.value.IsNull();
}

/// Returns a,b for [a, b].
std::string without_brackets(std::string text) {
  if (!text.starts_with('[')) return text;
  std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == ' '; });
  return text;
}

/// Returns false with `checkpoint: off`.
bool has_saves(const YAML::Node& root) {
  return !find_at_path(root, "checkpoint").value.IsScalar();
}

/// Further defaults of the framework: it evaluates a checkpoint every eval_throttle_secs, in
/// batches of the training's size.
std::vector<Override> evaluation_defaults(const YAML::Node& root,
                                          const std::vector<FieldDoc>& fields) {
  std::vector<Override> defaults;
  if (has_key(root, "data.eval") && has_saves(root) &&
      find_field(fields, "eval.on_save") != nullptr) {
    defaults.push_back(default_of("eval.on_save", "true", kPresetOrigin));
    const YamlPair on_save = find_at_path(root, "eval.on_save");
    const bool is_off =
        on_save.value.IsScalar() && !parse_bool(on_save.value.Scalar()).value_or(true);
    const YamlPair given = find_at_path(root, "eval.eval_throttle_secs");
    const std::string secs = given.value.IsScalar()
                                 ? given.value.Scalar()
                                 : std::string(find_flag("eval_throttle_secs")->preset);
    if (!is_off && parse_number(secs).value_or(0) > 0)
      defaults.push_back(default_of("eval.every_secs", secs, kPresetOrigin));
  }
  const YamlPair batch = find_at_path(root, "data.batch_size_per_rank");
  // The training's batch size may be set, absent (the preset's default) or null (no default).
  if (batch.value.IsScalar())
    defaults.push_back(default_of("eval.batch_size", batch.value.Scalar(), kPresetOrigin));
  else if (!batch.key.IsScalar() && !has_key(root, "data.global_batch_size"))
    defaults.push_back(
        default_of("eval.batch_size", std::string(find_flag("batch_size")->preset), kPresetOrigin));
  return defaults;
}

/// Defaults of `preset: trainer`: each epoch ends with a save, an evaluation and an export. Without
/// evaluation data, the final weights are exported.
std::vector<Override> trainer_defaults(const YAML::Node& root) {
  if (!has_saves(root)) return {};
  const auto set = [](const char* path, const char* value) {
    return default_of(path, value, "preset: trainer");
  };
  if (!has_key(root, "data.eval")) return {set("export.at_end", "true")};
  return {set("eval.on_save", "true"), set("eval.every_epochs", "1"),
          set("export.after_evaluation", "true")};
}

/// Returns the overrides that a flag stands for. It may also set further keys if the file does not
/// set them: a format for --train_metadata, the run's name for --model_dir.
std::vector<Override> overrides_of_flag(const Flag& flag, const std::string& value,
                                        const std::string& origin) {
  const std::optional<std::string> text = as_kind(flag.kind, value);
  if (!text)
    throw Error(ExitCode::kUsage, "usage",
                fmt::format("--{} takes {}, not '{}'", flag.name,
                            flag.kind == Flag::kInteger  ? "a whole number"
                            : flag.kind == Flag::kNumber ? "a number"
                                                         : "true or false",
                            printable(value)));
  std::vector<Override> all = {
      {.path = std::string(flag.path), .value = quoted_text(*text), .origin = origin}};
  if (!flag.second_path.empty()) {
    all.push_back(all.front());
    all.back().path = flag.second_path;
  }
  // A data file also needs a format, and a model folder a run name, unless the file sets them.
  if (flag.path.starts_with("data.") && flag.path.ends_with(".path"))
    all.push_back(default_of(std::string(flag.path.substr(0, flag.path.rfind('.'))) + ".type",
                             "files", origin));
  if (flag.path == "run.project_dir")
    all.push_back(default_of("run.name", folder_name(*text), origin));
  // image_size exists only in sections of data that have images.
  for (Override& one : all) one.needs_section = one.path.ends_with(".image_size");
  return all;
}

}  // namespace

void resolve_flags(const std::vector<FieldDoc>& fields, std::vector<Override>* overrides) {
  std::vector<Override> resolved;
  for (Override& one : *overrides) {
    // The estimator's own flags take precedence over those of the flag table.
    const bool is_own = !one.is_flag || find_field(fields, one.path) != nullptr;
    const std::string name = one.is_flag ? one.path.substr(kEstimator.size()) : "";
    const bool is_negated = !is_own && name.starts_with("no") && one.value == "true";
    const std::string positive = is_negated ? name.substr(2) : name;
    const FieldDoc* own = find_field(fields, std::string(kEstimator) + positive);
    const Flag* flag = find_flag(positive);
    // --nodeep for a flag `deep` of the estimator; otherwise --nodebug for a bool of the table.
    if (is_negated && own != nullptr && own->type == "true or false") {
      one.path = own->path;
      one.value = "false";
      resolved.push_back(std::move(one));
    } else if (!is_own && flag != nullptr && (!is_negated || flag->kind == Flag::kBool)) {
      for (Override& part :
           overrides_of_flag(*flag, is_negated ? "false" : one.value, "flag --" + positive)) {
        part.from_environment = one.from_environment;
        resolved.push_back(std::move(part));
      }
    } else {
      resolved.push_back(std::move(one));
    }
  }
  *overrides = std::move(resolved);
}

YamlDocument document_of_flags(Diagnostics* faults) {
  return YamlDocument::parse("the command line", "preset: estimator\n", faults);
}

std::vector<Override> complete_run_of_flags(const YAML::Node& root) {
  const bool has_estimator = has_key(root, "estimator");
  const bool has_data = has_key(root, "data.train");
  std::vector<std::string> missing;
  if (!has_key(root, "run.project_dir") && !has_key(root, "run.name"))
    missing.emplace_back("--model_dir FOLDER");
  if (!has_estimator && !has_key(root, "model"))
    missing.emplace_back("--model TYPE (resnet18, ...) or --estimator=LIB");
  if (!has_estimator && !has_data) missing.emplace_back("--train_metadata FILES");
  if (!missing.empty())
    throw Error(
        ExitCode::kUsage, "usage",
        fmt::format("without --config FILE a run also needs {}", fmt::join(missing, ", and ")));
  if (has_data) return {};
  std::vector<Override> data = {default_of("data.train.type", "estimator", "--estimator")};
  if (!has_key(root, "data.eval"))
    data.push_back(default_of("data.eval.type", "estimator", "--estimator"));
  return data;
}

std::vector<Override> preset_defaults(const YAML::Node& root, const std::vector<FieldDoc>& fields) {
  std::vector<Override> defaults;
  if (has_preset(root, "trainer")) return trainer_defaults(root);
  if (!has_preset(root, "estimator")) return defaults;
  for (const Flag& flag : flag_table()) {
    const bool steps_aside =
        std::any_of(std::begin(kStepsAside), std::end(kStepsAside), [&](const StepsAside& rule) {
          return rule.path == flag.path && has_key(root, rule.for_path);
        });
    if (flag.preset.empty() || steps_aside) continue;
    // A flag may set two keys (image size of training and evaluation).
    for (const std::string_view path : {flag.path, flag.second_path}) {
      if (path.empty() || !is_known(flag, path, fields)) continue;
      defaults.push_back(default_of(std::string(path), std::string(flag.preset), kPresetOrigin));
      defaults.back().needs_section = !flag.second_path.empty();
    }
  }
  for (Override& one : evaluation_defaults(root, fields)) defaults.push_back(std::move(one));
  return defaults;
}

std::vector<std::string> take_unused(const std::vector<FieldDoc>& fields, YamlDocument* document) {
  std::vector<std::string> notes;
  for (const Flag& flag : flag_table())
    for (const std::string_view path : {flag.path, flag.second_path}) {
      const YamlPair pair = find_at_path(document->root(), path);
      // Keys that the chosen settings do read stay.
      if (!pair.key.IsScalar() || find_field(fields, path) != nullptr) continue;
      const std::string place = document->place_text(pair.key.Mark());
      const bool is_flag = place.starts_with("flag --");
      if (!is_flag && !has_preset(document->root(), "estimator")) continue;
      YAML::Node section = find_at_path(document->root(), path.substr(0, path.rfind('.'))).value;
      section.remove(std::string(path.substr(path.rfind('.') + 1)));
      if (place != kPresetOrigin)
        notes.push_back(fmt::format("{}: '{}' has no effect with the other settings", place, path));
    }
  return notes;
}

flags::Values flag_values(const std::vector<std::string>& settings,
                          const std::vector<FieldDoc>& fields) {
  flags::Values values;
  std::map<std::string, std::string, std::less<>> types;
  for (const FieldDoc& field : fields) {
    const std::string text = without_brackets(field.default_text);
    const bool has_value = !text.empty() && text != "none" && text != "required";
    values.emplace(field.path, has_value ? std::optional(text) : std::nullopt);
    types.emplace(field.path, field.type);
  }
  for (const std::string& line : settings) {
    const size_t mark = line.find('=');
    const size_t bracket = std::min(line.find('['), mark);
    // Lists are several lines, path[0]=..., path[1]=...; they become one comma-separated value.
    const std::string path = line.substr(0, bracket), text = line.substr(mark + 1);
    std::optional<std::string>& value = values[path];
    if (bracket < mark && !line.starts_with(path + "[0]"))
      value = value.value_or("") + "," + text;  // a further item of a list
    else
      value = types[path] == "true or false" ? as_kind(Flag::kBool, text) : std::optional(text);
  }
  // Flags, and the estimator's own keys, can be read under their short names too.
  for (const Flag& flag : flag_table())
    for (const std::string_view name : {flag.name, flag.alias})
      if (!name.empty()) values.insert_or_assign(std::string(name), values[std::string(flag.path)]);
  for (const FieldDoc& field : fields)
    if (field.path.starts_with(kEstimator))
      values.emplace(field.path.substr(kEstimator.size()), values[field.path]);
  return values;
}

// Registers the flag table as CLI11 options. CLI11 only collects the texts; overrides() checks and
// converts them.

/// Lets FlagOptions::overrides() report a flag that is given twice.
static CLI::Option* in_group(const Flag& flag, CLI::Option* option) {
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return option->group(fmt::format("{} flags (docs/flags.md)", flag.group));
}

static CLI::Option* add(const Flag& flag, CLI::App* app) {
  std::string names = fmt::format("--{}", flag.name);
  if (!flag.alias.empty()) names += fmt::format(",--{}", flag.alias);
  const std::string help(flag.help);
  const CLI::callback_t takes = [](const CLI::results_t&) { return true; };
  CLI::Option* option =
      flag.kind == Flag::kBool ? app->add_flag(names, help) : app->add_option(names, takes, help);
  if (flag.kind != Flag::kBool) option->type_name(std::string(kind_text(flag.kind)));
  if (!flag.preset.empty()) option->default_str(std::string(flag.preset));
  return in_group(flag, option);
}

/// Adds --nodebug for a bool; returns null for other kinds.
static CLI::Option* add_negated(const Flag& flag, CLI::App* app) {
  if (flag.kind != Flag::kBool) return nullptr;
  const std::string help =
      fmt::format("--{}=false", flag.name);  // a temporary one would be a value
  return in_group(flag, app->add_flag(fmt::format("--no{}", flag.name), help));
}

static void require_no_value(const Flag& flag, const CLI::Option& negated) {
  for (const std::string& value : negated.results())  // CLI11 reports "true" if there is no value
    if (value != "true")
      throw Error(ExitCode::kUsage, "usage",
                  fmt::format("--no{0} takes no value, not '{1}': it means --{0}=false", flag.name,
                              printable(value)));
}

/// Returns the long names of all options, for suggestions.
static std::vector<std::string> all_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

FlagOptions::FlagOptions(CLI::App* app) {
  for (const Flag& flag : flag_table())
    options_.push_back({&flag, add(flag, app), add_negated(flag, app)});
}

std::vector<Override> FlagOptions::overrides() const {
  std::vector<Override> all;
  for (const auto& [flag, option, negated] : options_) {
    std::vector<std::string> values = option->results();
    if (negated != nullptr) {
      require_no_value(*flag, *negated);
      values.insert(values.end(), negated->count(), "false");
    }
    if (values.empty()) continue;
    const std::string name = fmt::format("--{}", flag->name);
    if (values.size() > 1)
      throw Error(ExitCode::kUsage, "usage",
                  fmt::format("{} is given {} times ({}): give it once", name, values.size(),
                              printable(fmt::format("{}", fmt::join(values, ", ")))));
    for (Override& one : overrides_of_flag(*flag, values.front(), "flag " + name))
      all.push_back(std::move(one));
  }
  return all;
}

void refuse_empty_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--") || word.find('=') != word.size() - 1) continue;
    throw Error(ExitCode::kUsage, "usage",
                fmt::format("{} has no value: give one, or remove the flag", printable(word)));
  }
}

std::string unknown_words(const CLI::App& app) {
  std::vector<std::string> lines;
  bool follows_a_flag = false;
  for (const std::string& word : app.remaining()) {
    // Words after an unknown flag may be its value; report only the flag.
    const std::string name = word.substr(0, word.find('='));
    const bool is_value = follows_a_flag && !name.starts_with("-");
    follows_a_flag = name.starts_with("-") && name == word;
    if (is_value) continue;
    if (name.starts_with("-"))
      lines.push_back(fmt::format("[usage] unknown flag {}{}; flags of an estimator go after --",
                                  printable(name), did_you_mean(name, all_names(app))));
    else
      lines.push_back(
          fmt::format("[usage] '{}' belongs to no flag; put a pattern in quotes (--train_metadata "
                      "'data/train*'), and a boolean after = (--debug=false)",
                      printable(word)));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace lockstep::daemon
