#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recal/time/train_time.h"

namespace lockstep::recal {

/// Computes cos(pi * t) for t in [0, 1], within 2^-52. Uses additions and multiplications only,
/// because C libraries choose code by processor, which may change the last bit.
double cos_pi(double t);

/// Value that changes at every step, such as a learning rate. t goes from 0 to 1 over the window,
/// or over each cycle:
///
///   linear   first + (last - first) * t
///   cosine   last + (first - last) * (1 + cos(pi * t)) / 2     (Loshchilov & Hutter 2017,
///            arXiv:1608.03983, eq. 5, where it restarts each cycle)
///
/// Pure function of the step: equal on all ranks, and the same after a resume.
struct LrSchedule {
  enum class Shape { kLinear, kCosine };
  Shape shape = Shape::kLinear;
  double first = 0;                  ///< value at t = 0
  double last = 0;                   ///< value at t = 1
  double begin = 0, end = 0;         ///< start and end of the window in steps, not rounded
  int64_t last_step = 0;             ///< first step at which it no longer changes
  std::optional<Recurrence> cycles;  ///< nullopt: no repetition
  int64_t steps_per_epoch = 1;

  /// Value at a step. Before the window: `first`. After it: `last`, or with cycles the value at the
  /// window's last step.
  double at(int64_t step) const;
  /// Text such as "cosine from 0.1 to 0.001, again every 2 epochs".
  std::string text() const;
  /// Text of everything that at() depends on, exactly.
  std::string canonical_text() const;

 private:
  double fraction_at(int64_t step) const;
};

}  // namespace lockstep::recal
