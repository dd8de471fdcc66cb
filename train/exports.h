#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/evaluator.h"

namespace lockstep::train {

/// A checkpoint to publish, with its metrics.
struct Evaluated {
  int64_t step = 0;
  std::string save;                  ///< prefix of a committed checkpoint
  std::optional<double> train_loss;  ///< of the last update before it
  std::optional<EvalResult> eval;
};

/// Publishes models in parallel to training. Every rank makes the same calls, on the training
/// thread. Rank 0 does the work, in a separate thread. Errors end nothing: they are logged,
/// counted, and reported at the end.
class Exports {
 public:
  virtual ~Exports() = default;
  /// Starts an export. First waits for the previous one.
  virtual void begin(const Evaluated& evaluated) = 0;
  /// Waits until the checkpoint that is being published has been read. Call it before another save
  /// may remove it.
  virtual void wait_until_read() = 0;
  /// Waits for the running export. Collective. False on all ranks if the last one failed.
  virtual bool settle() = 0;
};

}  // namespace lockstep::train
