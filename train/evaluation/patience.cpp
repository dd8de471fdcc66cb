#include "train/evaluation/patience.h"

#include <cmath>

namespace lockstep::train {

bool is_better(const std::string& metric, double value, const std::optional<double>& best) {
  if (!std::isfinite(value)) return false;
  if (!best) return true;
  return metric == "eval.loss" ? value < *best : value > *best;
}

bool Patience::add(double value) {
  const bool is_best = is_better(metric_, value, best_);
  num_without_ = is_best ? 0 : num_without_ + 1;
  if (is_best) best_ = value;
  return is_best;
}

}  // namespace lockstep::train
