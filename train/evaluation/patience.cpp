#include "train/evaluation/patience.h"

#include <cmath>

namespace lockstep::train {

bool Patience::add(double value) {
  const bool is_better = std::isfinite(value) &&
                         (!best_ || (metric_ == "eval.loss" ? value < *best_ : value > *best_));
  num_without_ = is_better ? 0 : num_without_ + 1;
  if (is_better) best_ = value;
  return is_better;
}

}  // namespace lockstep::train
