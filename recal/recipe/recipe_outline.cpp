#include "recal/recipe/recipe_outline.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "recal/schedule/modifier_table.h"

// Top level of a recipe, and the modifiers of its stages.
namespace lockstep::recal {
// Sorts the top level of a recipe file by form alone, without reading modifiers: version,
// variables, lists of modifiers, stages. Names decide as in SparseML: a key with "modifiers" holds
// modifiers.
namespace {

constexpr std::string_view kModifiers = "modifiers";
constexpr std::string_view kOneshot = "oneshot";
constexpr int64_t kMajorVersion = 1;

/// Parses the three numbers of a version such as 1.0.0.
std::optional<std::vector<int64_t>> parse_version(std::string_view text) {
  std::vector<int64_t> numbers;
  for (const std::string& part : split(text, '.')) {
    const std::optional<int64_t> number = parse_integer(part);
    if (!number || part.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers.size() == 3 && !text.ends_with('.') ? std::optional(numbers) : std::nullopt;
}

/// Reads the version. Returns a note about how it was read, or "".
std::string read_version(ConfigReader* in) {
  std::string version;
  if (!in->read("version", &version, "version of the recipe language, 1.0.0"))
    return in->has("version") ? "" : "the recipe has no version: it is read as 1.0.0";
  const auto numbers = parse_version(version);
  if (!numbers) {
    in->fault("version",
              fmt::format("'version' must be three numbers such as 1.0.0, not '{}'", version));
  } else if (numbers->front() > kMajorVersion) {
    in->fault("version", fmt::format("'version' is {}; this program reads versions up to {}.x",
                                     version, kMajorVersion));
  } else if (numbers->front() < kMajorVersion) {
    return fmt::format("version {} is read as 1.0.0", version);
  }
  return "";
}

/// True for a scalar without a tag; yaml-cpp gives plain and quoted scalars a tag of one character.
bool is_scalar(const YAML::Node& node) { return node.IsScalar() && node.Tag().size() <= 1; }

bool is_list_of_scalars(const YAML::Node& node) {
  return node.IsSequence() && std::all_of(node.begin(), node.end(), is_scalar);
}

/// True for the value of a variable: a scalar, a list of scalars, or a map of these.
bool is_variable(const YAML::Node& node) {
  if (is_scalar(node) || node.IsNull() || is_list_of_scalars(node)) return true;
  return node.IsMap() && node.Tag().size() <= 1 &&
         std::all_of(node.begin(), node.end(), [](const auto& pair) {
           return is_scalar(pair.second) || pair.second.IsNull() || is_list_of_scalars(pair.second);
         });
}

bool is_map_of_modifiers(const YAML::Node& node) {
  return node.IsMap() && std::any_of(node.begin(), node.end(), [](const auto& pair) {
           return pair.first.IsScalar() && is_modifier_name(pair.first.Scalar());
         });
}

/// Reason for refusing an entry that is not `version`, a list of modifiers or a stage. Empty if the
/// entry is a variable.
std::string refusal_of(const std::string& key, const YAML::Node& value) {
  const bool is_whole = key.find(kModifiers) != std::string::npos;
  const std::string hint = is_whole ? "" : did_you_mean(key, {std::string(kModifiers)});
  if (!hint.empty()) return "unknown key '" + key + "'" + hint;
  if (is_variable(value)) return "";
  return fmt::format(
      "unknown key '{}': a recipe contains 'version', variables (numbers, strings, lists of them), "
      "lists of modifiers, whose names contain 'modifiers', or stages, which are maps of such "
      "lists",
      key);
}

/// Reads keys that describe a stage, such as run_type and enabled. Returns true for such a key.
bool read_stage_key(const std::string& key, const YAML::Node& value, const YamlDocument& document,
                    RecipeOutline::Stage* stage, Diagnostics* faults) {
  const std::string text = value.IsScalar() ? value.Scalar() : "";
  if (key == "run_type") {
    // An explicit run_type overrides the name of the stage.
    stage->is_oneshot = text == kOneshot;
    if (text != kOneshot && text != "train")
      faults->add(
          document.fault_at(value, "'" + stage->name + ".run_type' must be train or oneshot"));
    return true;
  }
  if (key == "enabled") {
    const std::optional<bool> enabled = parse_bool(text);
    stage->is_enabled = enabled.value_or(true);
    if (!enabled)
      faults->add(document.fault_at(value, "'" + stage->name + ".enabled' must be true or false"));
    return true;
  }
  // SparseML's key for its default modifiers, which do not exist here.
  return key == "exclude_default";
}

/// Adds an entry of the top level or of a stage to the lists of modifiers or to the variables.
/// Refuses others.
void sort_entry(const RecipeOutline::Entry& entry, RecipeOutline::Stage* stage,
                std::vector<RecipeOutline::Entry>* variables, const YamlDocument& document,
                Diagnostics* faults) {
  if (holds_modifiers(entry.name, entry.node)) return stage->lists.push_back(entry);
  const std::string refusal = refusal_of(entry.name, entry.node);
  if (refusal.empty()) return variables->push_back(entry);
  if (!faults->full()) faults->add(document.fault_at(entry.key, refusal));
}

RecipeOutline::Stage read_stage(const RecipeOutline::Entry& entry, const YamlDocument& document,
                                Diagnostics* faults) {
  RecipeOutline::Stage stage{.name = entry.name,
                             .key = entry.key,
                             .is_oneshot = entry.name.find(kOneshot) != std::string::npos};
  for (const auto& pair : entry.node) {
    if (!pair.first.IsScalar()) continue;  // the document already reported it
    const std::string& key = pair.first.Scalar();
    if (!read_stage_key(key, pair.second, document, &stage, faults))
      sort_entry({key, pair.second, pair.first}, &stage, &stage.variables, document, faults);
  }
  return stage;
}

std::vector<std::string> names_of(const std::vector<RecipeOutline::Stage>& stages) {
  std::vector<std::string> names;
  for (const RecipeOutline::Stage& stage : stages) names.push_back(stage.name);
  return names;
}

using Modifiers = std::vector<std::unique_ptr<Modifier>>;

void append(Modifiers more, Modifiers* all) {
  all->insert(all->end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
}

Modifiers read_lists(const RecipeOutline::Stage& stage, const YamlDocument& document,
                     Diagnostics* faults) {
  Modifiers all;
  for (const RecipeOutline::Entry& list : stage.lists) {
    // The list of faults has a limit, and nothing after it is reported.
    if (faults->full()) break;
    if (!check_is_list(list, document, faults)) continue;
    if (list.node.IsMap()) {
      for (const auto& pair : list.node)
        append(read_named_modifier(pair.first, pair.second, document, faults), &all);
    } else {
      for (const YAML::Node& item : list.node) append(read_modifier(item, document, faults), &all);
    }
  }
  return all;
}

/// Time until which a modifier extends its stage: its end, or without an end the first whole epoch
/// at or after its start. Returns nullopt if that is the start or the end of the stage itself.
std::optional<TrainTime> reach_of(const Window& window) {
  if (window.end) return window.end->is_run_end() ? std::nullopt : window.end;
  if (!window.start || window.start->kind != TrainTime::Kind::kEpoch) return std::nullopt;
  const int64_t epoch = window.start->epoch.ceil_times(1);
  if (epoch == 0) return std::nullopt;
  return TrainTime::at_epoch(Decimal(epoch));
}

bool is_later(const TrainTime& a, const TrainTime& b) {
  return a.kind == TrainTime::Kind::kStep ? a.step > b.step : a.epoch > b.epoch;
}

/// Places stages one after another.
class StageLine {
 public:
  StageLine(const YamlDocument& document, std::vector<std::string>* notes, Diagnostics* faults)
      : document_(document), notes_(*notes), faults_(*faults) {}

  void place(const RecipeOutline::Stage& stage, bool is_last, const Modifiers& modifiers) {
    std::optional<TrainTime> end = length_of(stage, is_last, modifiers);
    // The end counts from the stage's start; place() turns it into a moment of the run.
    if (end) StageSpan(start_, std::nullopt).place(&*end);
    if (!end && !is_last)
      fault(stage.key,
            fmt::format("stage '{}' names no end, so that none can follow it: give it an "
                        "!EpochRangeModifier, or run one stage (--stage NAME, "
                        "recipe_stage in a run file)",
                        stage.name));
    StageSpan span(start_, is_last ? std::nullopt : end);
    for (const auto& modifier : modifiers) modifier->place_in(&span);
    if (!span.fault().empty())
      fault(stage.key, fmt::format("stage '{}': {}", stage.name, span.fault()));
    notes_.push_back(fmt::format(
        "{}: stage '{}' runs from {} to {}", location_of(document_, stage.key).text(), stage.name,
        start_.sentence_text(), end ? end->sentence_text() : "the run's end"));
    if (end) start_ = *end;
  }

 private:
  /// Length of a stage. nullopt if no modifier has an end, or if the last stage has ends in epochs
  /// and in steps: which is later is only known when the recipe is compiled.
  std::optional<TrainTime> length_of(const RecipeOutline::Stage& stage, bool is_last,
                                     const Modifiers& modifiers) {
    std::optional<TrainTime> longest;
    bool names_end = false;
    for (const auto& modifier : modifiers) {
      const Window window = modifier->window();
      const std::optional<TrainTime> reach = reach_of(window);
      if (!reach) continue;
      names_end = names_end || window.end;
      // Epochs and steps cannot be compared before the steps per epoch are known.
      if (longest && longest->kind != reach->kind) {
        if (is_last) return std::nullopt;
        fault(stage.key, fmt::format("stage '{}' has an end at {} and one at {}: write both in "
                                     "epochs or both in steps",
                                     stage.name, longest->sentence_text(), reach->sentence_text()));
        return longest;
      }
      if (!longest || is_later(*reach, *longest)) longest = reach;
    }
    // Starts alone extend a stage but do not end it: an end must be named.
    return names_end ? longest : std::nullopt;
  }

  void fault(const YAML::Node& at, std::string message) {
    faults_.add(document_.fault_at(at, std::move(message)));
  }

  const YamlDocument& document_;
  std::vector<std::string>& notes_;
  Diagnostics& faults_;
  TrainTime start_ = TrainTime::at_epoch(Decimal());
};

}  // namespace

bool holds_modifiers(std::string_view key, const YAML::Node& value) {
  if (key.ends_with(kModifiers)) return true;
  return key.find(kModifiers) != std::string_view::npos &&
         (value.IsSequence() || is_map_of_modifiers(value));
}

bool is_stage(const YAML::Node& node) {
  return node.IsMap() && std::any_of(node.begin(), node.end(), [](const auto& pair) {
           return pair.first.IsScalar() && holds_modifiers(pair.first.Scalar(), pair.second);
         });
}

RecipeOutline read_outline(const YamlDocument& document, Diagnostics* faults) {
  RecipeOutline outline;
  RecipeOutline::Stage unnamed;
  ConfigReader in(document.root(), "", document, faults);
  if (const std::string note = read_version(&in); !note.empty())
    outline.notes.push_back(fmt::format("{}: {}", document.file(), note));
  for (const auto& pair : document.root()) {
    if (!pair.first.IsScalar()) continue;  // the document already reported it
    const RecipeOutline::Entry entry{pair.first.Scalar(), pair.second, pair.first};
    if (entry.name == "version") continue;
    if (!holds_modifiers(entry.name, entry.node) && is_stage(entry.node)) {
      outline.stages.push_back(read_stage(entry, document, faults));
    } else {
      sort_entry(entry, &unnamed, &outline.variables, document, faults);
    }
  }
  // The limit bounds the work for a hostile file: each stage may be parsed again.
  if (outline.stages.size() > RecipeOutline::kMaxStages) {
    faults->add(document.fault_at(outline.stages.back().key, "more than 100 stages"));
    outline.stages.resize(RecipeOutline::kMaxStages);
  }
  if (outline.stages.empty()) {
    if (unnamed.lists.empty()) in.require(kModifiers);
    outline.stages.push_back(std::move(unnamed));
  } else if (!unnamed.lists.empty()) {
    faults->add(document.fault_at(
        unnamed.lists.front().key,
        fmt::format("'{}' is outside the stages ({}): move it into one of them",
                    unnamed.lists.front().name, fmt::join(names_of(outline.stages), ", "))));
  }
  return outline;
}

RecipeOutline outline_of_list(const std::string& name, const YAML::Node& list,
                              const YamlDocument& document) {
  YAML::Node key = list;
  for (const auto& pair : document.root())
    if (pair.first.IsScalar() && pair.first.Scalar() == name) key.reset(pair.first);
  RecipeOutline outline;
  outline.stages.push_back({.name = "", .key = key, .lists = {{name, list, key}}, .variables = {}});
  return outline;
}

void choose_stages(std::string_view name, const YamlDocument& document, RecipeOutline* outline,
                   Diagnostics* faults) {
  std::vector<RecipeOutline::Stage> chosen;
  for (const RecipeOutline::Stage& stage : outline->stages) {
    if (!name.empty() && stage.name != name) continue;
    // A stage that was asked for by name is used even if it is disabled.
    if (stage.is_enabled || !name.empty()) {
      chosen.push_back(stage);
    } else {
      outline->notes.push_back(fmt::format("{}: stage '{}' is skipped: it has enabled: false",
                                           location_of(document, stage.key).text(), stage.name));
    }
  }
  if (chosen.empty() && !name.empty()) {
    const bool has_stages = !outline->stages.front().name.empty();
    const std::vector<std::string> names = names_of(outline->stages);
    std::string hint = did_you_mean(name, names);
    if (hint.empty()) hint = fmt::format("; available: {}", fmt::join(names, ", "));
    faults->add(document.fault_at(
        outline->stages.front().key,
        has_stages ? fmt::format("unknown stage '{}'{}", name, hint)
                   : fmt::format("the recipe has no stages, so there is no stage '{}'", name)));
  }
  for (const RecipeOutline::Stage& stage : chosen)
    if (stage.is_oneshot)
      faults->add(document.fault_at(
          stage.key,
          fmt::format("stage '{}' is one-shot: it changes a model without training, which is not "
                      "supported; choose another stage (--stage NAME, recipe_stage in a run file)",
                      stage.name)));
  outline->stages = std::move(chosen);
}

bool check_is_list(const RecipeOutline::Entry& entry, const YamlDocument& document,
                   Diagnostics* faults) {
  if (entry.node.IsSequence() || is_map_of_modifiers(entry.node)) return true;
  const YAML::Node& place = entry.node.IsNull() ? entry.key : entry.node;  // null has no own place
  faults->add(document.fault_at(
      place,
      fmt::format("'{}' must be a list of items such as '- !EpochRangeModifier'", entry.name)));
  return false;
}

std::vector<std::shared_ptr<const Modifier>> read_stages(const RecipeOutline& outline,
                                                         const YamlDocument& document,
                                                         std::vector<std::string>* notes,
                                                         Diagnostics* faults) {
  std::vector<std::shared_ptr<const Modifier>> all;
  StageLine line(document, notes, faults);
  for (const RecipeOutline::Stage& stage : outline.stages) {
    Modifiers modifiers = read_lists(stage, document, faults);
    const bool is_last = &stage == &outline.stages.back();
    // A recipe without stages has one unnamed stage, whose moments are those of the run already.
    if (!stage.name.empty()) line.place(stage, is_last, modifiers);
    for (auto& modifier : modifiers) all.push_back(std::move(modifier));
  }
  return all;
}

}  // namespace lockstep::recal
