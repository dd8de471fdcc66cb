#pragma once

#include <cstdint>

namespace lockstep::coord {

/// The x axis of summaries: the last step of an epoch's training and the last of the evaluation
/// behind it have one number, so that curves of both end together. With 100 iterations of training
/// and 20 of evaluation the evaluation begins 80 later than the training did.
///
/// Steps and iterations count from 0. Where an evaluation is longer than all training before it,
/// its first steps are negative.
struct SummaryClock {
  /// `num_train_steps`: before it, since the start of the run.
  static int64_t train_step(int64_t num_train_steps) { return num_train_steps; }
  /// `num_train_steps`: until the evaluation; `iteration`: in it, of `num_eval_iterations`.
  static int64_t eval_step(int64_t num_train_steps, int64_t num_eval_iterations,
                           int64_t iteration) {
    return num_train_steps - num_eval_iterations + iteration;
  }
};

}  // namespace lockstep::coord
