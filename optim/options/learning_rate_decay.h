#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/decimal.h"
#include "base/yaml/config_reader.h"

namespace lockstep::optim {

/// Schedule of the optimizer itself: key `learning_rate_decay_type` and the keys after it.
///
///   fixed        rate
///   exponential  rate * factor^(s / d), the exponent rounded down if `staircase`
///   polynomial   (rate - end) * (1 - min(s, n) / n)^power + end
///   cosine       rate * s / w while s < w, then
///                (rate - end) * (1 + cos(pi * min(s - w, n) / n)) / 2 + end
///
/// s: updates done. d = round(num_epochs_per_decay * steps per epoch), at least 1. n: decay_steps
/// if given, else d if num_epochs_per_decay is given, else the steps of the run (cosine: minus w).
/// w: warmup_steps, or warmup_epochs in steps. Sources: tf.compat.v1.train.exponential_decay,
/// polynomial_decay and cosine_decay; Loshchilov & Hutter 2017 (SGDR), without restarts.
struct LearningRateDecay {
  std::string type = "fixed";  ///< fixed | exponential | polynomial | cosine
  double factor = 0.94;
  std::optional<double> num_epochs_per_decay;  ///< exponential: always set
  std::optional<int64_t> decay_steps;          ///< polynomial, cosine
  std::optional<int64_t> warmup_steps;         ///< cosine; not with warmup_epochs
  std::optional<double> warmup_epochs;         ///< cosine
  bool staircase = true;
  double end_learning_rate = 0.0001;
  double power = 1.0;
};

void read_learning_rate_decay(ConfigReader* in, LearningRateDecay* decay);

/// Returns the rate of update `step` (from 0): a pure function, the same on every rank and after a
/// resume.
double decayed_rate(const LearningRateDecay& decay, double learning_rate, int64_t step,
                    int64_t steps_per_epoch, int64_t total_steps);

}  // namespace lockstep::optim
