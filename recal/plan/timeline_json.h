#pragma once

#include <string>

#include "recal/timeline/timeline.h"

namespace lockstep::recal {

/// The timeline for programs, as one JSON object: steps_per_epoch, total_steps (null: no modifier
/// says), base_learning_rate, digest, modifiers, param_sets, actions, spans (rates that follow a
/// formula), notes, warnings. `modifier` and `params` of actions and spans are places in those
/// lists, from 0; null: none.
std::string plan_json(const Timeline& timeline);

}  // namespace lockstep::recal
