#pragma once

#include <cstdint>

#include "base/tensors/state_list.h"
#include "base/yaml/config_reader.h"

namespace lockstep::train {

/// Section `train.loss_scale` of the run file, for train.precision: fp16.
struct LossScaleOptions {
  int64_t initial_exponent = 16;
  int64_t growth_steps = 2000;  ///< finite updates in a row after which the scale doubles
};

LossScaleOptions read_loss_scale_options(ConfigReader in);

/// Power of two by which losses are multiplied before backward, so that small gradients do not
/// round to 0 in float16. It doubles after many finite updates and halves when a gradient
/// overflows. It depends only on decisions that are equal on all ranks, so it is equal too.
///
/// Source: Micikevicius et al., arXiv 1710.03740, section 3.2.
class LossScale {
 public:
  static constexpr int64_t kMaxExponent = 24;

  /// dynamic = false: always 1.
  LossScale(const LossScaleOptions& options, bool dynamic)
      : options_(options), dynamic_(dynamic), exponent_(dynamic ? options.initial_exponent : 0) {}
  LossScale() : LossScale({}, false) {}

  int64_t value() const { return int64_t{1} << exponent_; }
  bool is_dynamic() const { return dynamic_; }

  /// Ends a step. losses_finite: results of forward, which no scale can change. Returns true if the
  /// step was skipped because the scale was too large, and the scale was reduced.
  bool end_step(bool losses_finite, bool gradients_finite);

  /// Checkpoint state `_lockstep/loss_scale/...`, live memory; empty if not dynamic. After a
  /// checkpoint without it, the scale starts again.
  StateList state();

 private:
  LossScaleOptions options_;
  bool dynamic_;
  int64_t exponent_;
  int64_t finite_steps_ = 0;  ///< in a row, since the last change of the scale
};

}  // namespace lockstep::train
