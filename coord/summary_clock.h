#pragma once

#include <cstdint>

namespace lockstep::coord {

/// The x axis of summaries. The last training step of an epoch and the last step of the following
/// evaluation have the same number. So both curves end together. With 100 training and 20
/// evaluation iterations, the evaluation begins 80 later than the training.
///
/// A step is the number of updates done: the first training step is 1. The last step of each kind
/// in an epoch is the number of updates at its end. If an evaluation is longer than all training
/// before it, its first steps are 0 or negative.
struct SummaryClock {
  /// Returns the step. `num_train_steps`: since the start of the run, including this one.
  static int64_t train_step(int64_t num_train_steps) { return num_train_steps; }
  /// Returns the step. `num_train_steps`: before the evaluation. `iteration`: in the evaluation,
  /// from 0, of `num_eval_iterations`.
  static int64_t eval_step(int64_t num_train_steps, int64_t num_eval_iterations,
                           int64_t iteration) {
    return num_train_steps - num_eval_iterations + 1 + iteration;
  }
};

}  // namespace lockstep::coord
