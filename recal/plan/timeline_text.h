#pragma once

#include <string>

#include "recal/timeline/timeline.h"

namespace lockstep::recal {

/// What an action does, in a few words: "sparsity 0.500000 for head.weight".
std::string describe(const Timeline& timeline, const Action& action);

/// The timeline for people (`lockstep plan`): table of modifiers with start and end in epochs and
/// steps, then the events; long runs of like events are shortened, with their number. Warnings and
/// notes last.
std::string plan_text(const Timeline& timeline);

/// Learning rate and target sparsity over the run as two plots of characters
/// (plot/text_plot.h); empty if the run has no end or no steps.
std::string plot_text(const Timeline& timeline);

}  // namespace lockstep::recal
