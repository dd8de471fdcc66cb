#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::train {

/// Whether an evaluation's value is better than the best so far, if there is one. `metric`:
/// eval.loss, of which less is better, or eval.accuracy. As good is no better, and what is not
/// finite never is.
bool is_better(const std::string& metric, double value, const std::optional<double>& best);

/// Which evaluation was the best so far, and for how long none was better (eval.patience). Follows
/// from the values alone, so that ranks which evaluate alike decide alike.
class Patience {
 public:
  /// `metric` as in is_better(). `limit`: evaluations; 0: never exhausted.
  explicit Patience(std::string metric = "eval.loss", int64_t limit = 0)
      : metric_(std::move(metric)), limit_(limit) {}

  const std::string& metric() const { return metric_; }
  int64_t limit() const { return limit_; }
  /// True if the value is the best so far.
  bool add(double value);
  /// The last `limit` evaluations brought nothing better.
  bool is_exhausted() const { return limit_ > 0 && num_without_ >= limit_; }

 private:
  std::string metric_;
  int64_t limit_;
  int64_t num_without_ = 0;
  std::optional<double> best_;
};

}  // namespace lockstep::train
