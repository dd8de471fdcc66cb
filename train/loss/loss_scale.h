#pragma once

#include <cstdint>

#include "base/tensors/state_list.h"
#include "base/yaml/config_reader.h"

namespace lockstep::train {

/// Section `train.loss_scale` of the run file, for train.precision: fp16.
struct LossScaleOptions {
  int64_t initial_exponent = 16;
  int64_t growth_steps = 2000;  ///< finite updates in a row after which it doubles
};

LossScaleOptions read_loss_scale_options(ConfigReader in);

/// The power of two that losses are multiplied by before backward, so that small gradients are not
/// rounded to 0 in float16. Doubles after many finite updates, halves when a gradient overflowed.
/// Everything follows from verdicts that are equal on all ranks, and so is the scale.
///
/// Source: Micikevicius et al., arXiv 1710.03740, section 3.2.
class LossScale {
 public:
  static constexpr int64_t kMaxExponent = 24;

  /// `dynamic` false: 1 for ever.
  LossScale(const LossScaleOptions& options, bool dynamic)
      : options_(options), dynamic_(dynamic), exponent_(dynamic ? options.initial_exponent : 0) {}
  LossScale() : LossScale({}, false) {}

  int64_t value() const { return int64_t{1} << exponent_; }
  bool is_dynamic() const { return dynamic_; }

  /// After each step; `losses_finite`: forward's results, which no scale can mend. True if the step
  /// was skipped because the scale was too large, and it fell.
  bool end_step(bool losses_finite, bool gradients_finite);

  /// `_lockstep/loss_scale/...` over this object's own memory; empty if not dynamic. A save
  /// without it starts anew.
  StateList state();

 private:
  LossScaleOptions options_;
  bool dynamic_;
  int64_t exponent_;
  int64_t finite_steps_ = 0;  ///< in a row, since the scale last changed
};

}  // namespace lockstep::train
