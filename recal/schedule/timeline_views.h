#pragma once

#include <string>

#include "recal/schedule/timeline.h"

/// Output of a timeline for people and programs (`lockstep plan`).
namespace lockstep::recal {

/// Describes an action in a few words: "sparsity 0.500000 for head.weight".
std::string describe(const Timeline& timeline, const Action& action);

/// Returns a text for people: a table of modifiers with start and end in epochs and steps, then the
/// events. Long series of similar events are shortened and counted. Warnings and notes come last.
std::string plan_text(const Timeline& timeline);

/// Returns learning rate and target sparsity over the run as two text plots (plot/plot.h). Empty if
/// the run has no end or no steps.
std::string plot_text(const Timeline& timeline);

/// Returns a CSV table for programs (RFC 4180, with a heading): step, epoch, modifier, event,
/// params, value. `modifier`: position in the recipe, from 1, and tag. `params`: names separated by
/// spaces, or the group: all, 0, 1. Each change at a step is a row. A rate that follows a formula
/// has one row per step, of which at most kMaxFormulaRows are written, evenly spaced.
std::string plan_csv(const Timeline& timeline);

inline constexpr int64_t kMaxFormulaRows = 1'000'000;

/// Returns one JSON object for programs: steps_per_epoch, total_steps (null: no modifier defines
/// it), base_learning_rate, digest, modifiers, param_sets, actions, spans (rates that follow a
/// formula), notes, warnings. `modifier` and `params` of actions and spans are indexes into those
/// lists, from 0; null: none.
std::string plan_json(const Timeline& timeline);

/// Returns an SVG drawing: one bar per modifier, and below it curves over epochs. The curves show
/// the learning rate. If the recipe changes them, they also show target sparsity, weight decay, and
/// the counts of trainable parameters and quantized layers. Each event has a dot. Well-formed XML,
/// no scripts, no external references. `title` is at the top.
std::string plan_svg(const Timeline& timeline, const std::string& title);

}  // namespace lockstep::recal
