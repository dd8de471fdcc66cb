#pragma once

#include <string>

#include "recal/timeline/timeline.h"

/// A timeline as text, for people and programs (`lockstep plan`).
namespace lockstep::recal {

/// What an action does, in a few words: "sparsity 0.500000 for head.weight".
std::string describe(const Timeline& timeline, const Action& action);

/// For people: table of modifiers with start and end in epochs and steps, then the events; long
/// runs of like events are shortened, with their number. Warnings and notes last.
std::string plan_text(const Timeline& timeline);

/// Learning rate and target sparsity over the run as two plots of characters
/// (plot/plot.h); empty if the run has no end or no steps.
std::string plot_text(const Timeline& timeline);

/// A table for programs (RFC 4180, with a heading): step, epoch, modifier (its place in the recipe,
/// from 1, and its tag), event, params (names with spaces between them, or the group: all, 0, 1),
/// value. One row for each thing that changes at a step; a rate that follows a formula has one row
/// a step, of which at most kMaxFormulaRows are given, evenly spread.
std::string plan_csv(const Timeline& timeline);

inline constexpr int64_t kMaxFormulaRows = 1'000'000;

/// For programs, one JSON object: steps_per_epoch, total_steps (null: no modifier says),
/// base_learning_rate, digest, modifiers, param_sets, actions, spans (rates that follow a formula),
/// notes, warnings. `modifier` and `params` of actions and spans are places in those lists, from 0;
/// null: none.
std::string plan_json(const Timeline& timeline);

/// An SVG drawing of its own: one bar a modifier, below it over epochs the learning rate and, where
/// the recipe changes them, target sparsity, weight decay, and the numbers of trained parameters
/// and quantized layers, with a dot at each event. Well-formed XML, no scripts, no outside
/// references. `title` stands on top.
std::string plan_svg(const Timeline& timeline, const std::string& title);

}  // namespace lockstep::recal
