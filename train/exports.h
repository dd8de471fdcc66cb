#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/evaluator.h"

namespace lockstep::train {

/// A save that is to be published, and what is known of it.
struct Evaluated {
  int64_t step = 0;
  std::string save;                  ///< prefix, committed
  std::optional<double> train_loss;  ///< of the update before it
  std::optional<EvalResult> eval;
};

/// Publishes models beside training. Every rank makes the same calls, by the thread that trains;
/// rank 0 works, in a thread of its own. A fault ends nothing: it is told, counted, and known at
/// the end.
class Exports {
 public:
  virtual ~Exports() = default;
  /// Waits for the export before, if that is still under way.
  virtual void begin(const Evaluated& evaluated) = 0;
  /// Before another save may remove the one that is being published.
  virtual void wait_until_read() = 0;
  /// Waits for the export under way. Collective. False on all ranks if the last one failed.
  virtual bool settle() = 0;
};

}  // namespace lockstep::train
