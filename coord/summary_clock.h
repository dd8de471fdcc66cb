#pragma once

#include <cstdint>

namespace lockstep::coord {

/// The x axis of summaries: the last step of an epoch's training and the last of the evaluation
/// behind it have one number, so that curves of both end together. With 100 iterations of training
/// and 20 of evaluation the evaluation begins 80 later than the training did.
///
/// A step is counted as updates done: the first of training is 1, and the last of each kind of an
/// epoch is the updates done at its end. Where an evaluation is longer than all training before it,
/// its first steps are 0 and less.
struct SummaryClock {
  /// `num_train_steps`: since the start of the run, this one included.
  static int64_t train_step(int64_t num_train_steps) { return num_train_steps; }
  /// `num_train_steps`: until the evaluation; `iteration`: in it, from 0, of `num_eval_iterations`.
  static int64_t eval_step(int64_t num_train_steps, int64_t num_eval_iterations,
                           int64_t iteration) {
    return num_train_steps - num_eval_iterations + 1 + iteration;
  }
};

}  // namespace lockstep::coord
