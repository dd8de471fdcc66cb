#include "recal/recipe/recipe_stages.h"

#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/modifiers/modifier_table.h"

namespace lockstep::recal {
namespace {

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
