#include "recal/plan/timeline_views.h"

#include <nlohmann/json.hpp>

// The whole timeline, for programs that draw or check plans.
namespace lockstep::recal {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json moment_json(const std::optional<TrainTime>& moment) {
  return moment ? Json(moment->sentence_text()) : Json(nullptr);
}

Json group_json(int group) { return group == kAllGroups ? Json("all") : Json(group); }

Json json_of(const ModifierEntry& entry) {
  return {{"tag", entry.tag},
          {"summary", entry.summary},
          {"place", entry.place},
          {"start", moment_json(entry.window.start)},
          {"end", moment_json(entry.window.end)},
          {"start_step", or_null(entry.start_step)},
          {"end_step", or_null(entry.end_step)},
          {"logs_params", entry.param_logs == ParamLogs::kEverywhere}};
}

Json json_of(const ParamSet& set) {
  return {{"names", set.names},
          {"num_weights", set.num_weights},
          {"mask_type", set.mask_rule.kind.text()},
          {"global_sparsity", set.mask_rule.global},
          {"momentum_buffer_reset", set.momentum_buffer_reset}};
}

Json json_of(const Timeline& timeline, const Action& action) {
  const bool has_set = action.param_set >= 0;
  return {{"step", action.step},
          {"epoch", timeline.epoch_of(action.step)},
          {"event", traits_of(action.kind).name},
          {"modifier", action.modifier},
          // Either a set of parameters or a group, never both.
          {"params", has_set ? Json(action.param_set) : Json(nullptr)},
          {"group", has_set ? Json(nullptr) : group_json(action.group)},
          {"value", action.value}};
}

/// Describes a rate that follows a formula from its first to its last step.
Json span_json(const Action& action, const LrSchedule& formula) {
  return {{"first_step", action.step},
          {"last_step", formula.last_step},
          {"modifier", action.modifier},
          {"group", group_json(action.group)},
          {"shape", formula.shape == LrSchedule::Shape::kCosine ? "cosine" : "linear"},
          {"first", formula.first},
          {"last", formula.last},
          {"cycle_steps",
           formula.cycles ? Json(formula.cycles->length(formula.steps_per_epoch)) : Json(nullptr)},
          {"text", formula.text()}};
}

}  // namespace

std::string plan_json(const Timeline& timeline) {
  Json modifiers = Json::array(), sets = Json::array(), actions = Json::array(),
       spans = Json::array();
  for (const ModifierEntry& entry : timeline.modifiers()) modifiers.push_back(json_of(entry));
  for (const ParamSet& set : timeline.param_sets()) sets.push_back(json_of(set));
  for (const Action& action : timeline.actions()) {
    actions.push_back(json_of(timeline, action));
    if (action.formula >= 0)
      spans.push_back(
          span_json(action, timeline.rate_formulas()[static_cast<size_t>(action.formula)]));
  }
  const Json all{{"steps_per_epoch", timeline.steps_per_epoch()},
                 {"total_steps", or_null(timeline.total_steps())},
                 {"base_learning_rate", timeline.base_learning_rate()},
                 {"digest", timeline.digest()},
                 {"modifiers", modifiers},
                 {"param_sets", sets},
                 {"actions", actions},
                 {"spans", spans},
                 {"notes", timeline.notes()},
                 {"warnings", timeline.warnings()}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::recal
