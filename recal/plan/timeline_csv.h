#pragma once

#include <string>

#include "recal/timeline/timeline.h"

namespace lockstep::recal {

/// The timeline as a table for programs (RFC 4180, with a heading): step, epoch, modifier (its
/// place in the recipe, from 1, and its tag), event, params (names with spaces between them, or the
/// group: all, 0, 1), value. One row for each thing that changes at a step; a rate that follows a
/// formula has one row a step, of which at most kMaxFormulaRows are given, evenly spread.
std::string plan_csv(const Timeline& timeline);

inline constexpr int64_t kMaxFormulaRows = 1'000'000;

}  // namespace lockstep::recal
