#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recal/time/train_time.h"

namespace lockstep::recal {

/// cos(pi * t) for t in [0, 1], within 2^-52. By additions and multiplications alone: C libraries
/// choose their code by the processor, and the last bit with it.
double cos_pi(double t);

/// A value that changes at every step, such as a learning rate. With t from 0 to 1 over the window,
/// or over each cycle:
///
///   linear   first + (last - first) * t
///   cosine   last + (first - last) * (1 + cos(pi * t)) / 2     (Loshchilov & Hutter 2017,
///            arXiv:1608.03983, eq. 5, where it restarts each cycle)
///
/// A pure function of the step: equal on all ranks, and a resumed run takes the path of an unbroken
/// one.
struct LrSchedule {
  enum class Shape { kLinear, kCosine };
  Shape shape = Shape::kLinear;
  double first = 0;                  ///< value at t = 0
  double last = 0;                   ///< value at t = 1
  double begin = 0, end = 0;         ///< positions of the window in steps, before rounding up
  int64_t last_step = 0;             ///< first step at which it no longer changes
  std::optional<Recurrence> cycles;  ///< nothing: one fall over the window
  int64_t steps_per_epoch = 1;

  /// Before the window the first value; behind it `last`, or with cycles the value at the window's
  /// last step.
  double at(int64_t step) const;
  /// "cosine from 0.1 to 0.001, again every 2 epochs".
  std::string text() const;
  /// All that at() depends on, exactly.
  std::string canonical_text() const;

 private:
  double fraction_at(int64_t step) const;
};

}  // namespace lockstep::recal
