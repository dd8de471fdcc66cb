#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::train {

/// True if an evaluation's value is better than the best so far, if there is one. `metric`:
/// eval.loss (lower is better) or eval.accuracy. An equal value is not better, and a non-finite one
/// never is.
bool is_better(const std::string& metric, double value, const std::optional<double>& best);

/// Tracks the best evaluation and the number of evaluations since without improvement
/// (eval.patience). Depends on the values alone, so ranks with equal values decide alike.
class Patience {
 public:
  /// metric: as in is_better(). limit: number of evaluations; 0: never exhausted.
  explicit Patience(std::string metric = "eval.loss", int64_t limit = 0)
      : metric_(std::move(metric)), limit_(limit) {}

  const std::string& metric() const { return metric_; }
  int64_t limit() const { return limit_; }
  /// Adds a value; true if it is the best so far.
  bool add(double value);
  /// True if the last `limit` evaluations brought no improvement.
  bool is_exhausted() const { return limit_ > 0 && num_without_ >= limit_; }

 private:
  std::string metric_;
  int64_t limit_;
  int64_t num_without_ = 0;
  std::optional<double> best_;
};

}  // namespace lockstep::train
