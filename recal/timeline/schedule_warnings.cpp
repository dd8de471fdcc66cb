#include "recal/timeline/schedule_warnings.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::recal {
namespace {

/// Tag of the modifier that only sets the length of training.
constexpr std::string_view kEpochRangeTag = "EpochRangeModifier";

std::vector<const Action*> actions_of(const Timeline& timeline, size_t modifier) {
  std::vector<const Action*> own;
  for (const Action& action : timeline.actions())
    if (action.modifier == static_cast<int>(modifier)) own.push_back(&action);
  return own;
}

/// Reason why a modifier does not do everything it says; "" if it does.
std::string idleness(const Timeline& timeline, size_t modifier, std::optional<int64_t> last_step) {
  const ModifierEntry& entry = timeline.modifiers()[modifier];
  const std::vector<const Action*> actions = actions_of(timeline, modifier);
  if (actions.empty()) return "never fires: its window is shorter than one step";
  // A run of unknown length may reach everything.
  if (!last_step) return "";
  if (!is_reached(*actions.front(), *last_step))
    return fmt::format("never fires: it starts at step {}, the run has {} steps",
                       actions.front()->step, *last_step);
  if (entry.end_step && *entry.end_step > *last_step)
    return fmt::format("never reaches its end: that is step {}, the run has {} steps",
                       *entry.end_step, *last_step);
  const bool freezes = actions.back()->kind == ActionKind::kFreezeObservers ||
                       actions.back()->kind == ActionKind::kFreezeBatchNorm;
  if (freezes && !is_reached(*actions.back(), *last_step))
    return fmt::format("never comes to {} at step {}, the run has {} steps",
                       traits_of(actions.back()->kind).name, actions.back()->step, *last_step);
  return "";
}

bool names_end(const ModifierEntry& entry) {
  return entry.end_step && entry.window.end && !entry.window.end->is_run_end();
}

/// Returns the modifier with this tag ("": any) and the largest named end; nullptr if none.
const ModifierEntry* last_to_end(const Timeline& timeline, std::string_view tag) {
  const ModifierEntry* last = nullptr;
  for (const ModifierEntry& entry : timeline.modifiers())
    if ((tag.empty() || entry.tag == tag) && names_end(entry) &&
        (last == nullptr || *entry.end_step > *last->end_step))
      last = &entry;
  return last;
}

bool starts_at_or_after(const ModifierEntry& entry, int64_t step) {
  return !entry.window.end && entry.start_step && *entry.start_step >= step;
}

}  // namespace

bool is_reached(const Action& action, int64_t last_step) {
  const ActionTraits& traits = traits_of(action.kind);
  const bool acts_at_closing = traits.is_on_masks || traits.is_on_values;
  return action.step < last_step || (action.step == last_step && acts_at_closing);
}

std::vector<std::string> widening_notes(const Timeline& timeline) {
  const ModifierEntry* range = last_to_end(timeline, kEpochRangeTag);
  const ModifierEntry* last = last_to_end(timeline, "");
  std::vector<std::string> notes;
  const auto note = [&](const ModifierEntry& entry, std::string_view what, const TrainTime& own,
                        const ModifierEntry& bound) {
    notes.push_back(fmt::format("{}: {} lengthens the run: it {} at {}, {} ends at {}", entry.place,
                                entry.tag, what, own.sentence_text(), bound.tag,
                                bound.window.end->text()));
  };
  for (const ModifierEntry& entry : timeline.modifiers()) {
    // Two ways to extend a run: a later end, or a start without an end.
    if (range && names_end(entry) && *entry.end_step > *range->end_step)
      note(entry, "ends", *entry.window.end, *range);
    if (last && starts_at_or_after(entry, *last->end_step) &&
        *timeline.total_steps() > *last->end_step)
      note(entry, "starts", *entry.window.start, *last);
  }
  return notes;
}

std::vector<std::string> idle_warnings(const Timeline& timeline, std::optional<int64_t> max_steps) {
  std::optional<int64_t> last_step = timeline.total_steps();
  if (max_steps) last_step = std::min(last_step.value_or(*max_steps), *max_steps);
  std::vector<std::string> warnings;
  for (size_t i = 0; i < timeline.modifiers().size(); ++i) {
    const ModifierEntry& entry = timeline.modifiers()[i];
    // It has no actions by design.
    if (entry.tag == kEpochRangeTag) continue;
    const std::string why = idleness(timeline, i, last_step);
    if (!why.empty()) warnings.push_back(fmt::format("{}: {}: {}", entry.place, entry.tag, why));
  }
  return warnings;
}

}  // namespace lockstep::recal
