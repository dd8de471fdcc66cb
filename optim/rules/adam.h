#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "optim/options/optimizer_options.h"
#include "optim/rules/numbers.h"

namespace lockstep::optim::rules {

/// The two moments of Adam and LAMB, m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g², and their
/// corrections: both start at 0, so after t updates m is divided by 1 - b1^t and v by 1 - b2^t.
/// `num_updates` is t, this update included, at least 1. Source: Kingma & Ba 2015.
template <typename N>
struct Moments {
  static constexpr std::array kSlots{"m", "v"};

  Moments(const OptimizerOptions& options, int64_t num_updates)
      : first_share(static_cast<N>(1 - options.adam_beta1)),
        second_decay(static_cast<N>(options.adam_beta2)),
        second_share(static_cast<N>(1 - options.adam_beta2)),
        first_correction(1 - std::pow(options.adam_beta1, static_cast<double>(num_updates))),
        exact_root_scale(
            std::sqrt(1 - std::pow(options.adam_beta2, static_cast<double>(num_updates)))),
        root_scale(static_cast<N>(exact_root_scale)) {}

  /// Brings both moments up to date with g; returns sqrt(v / (1 - b2^t)).
  template <typename V>
  LOCKSTEP_INLINE V update(const V& g, V& m, V& v) const {
    m = lerp(m, g, first_share);
    v = multiply_add(g * second_share, g, v * second_decay);
    return root(v) / root_scale;
  }

  N first_share;            ///< 1 - beta1
  N second_decay;           ///< beta2
  N second_share;           ///< 1 - beta2
  double first_correction;  ///< 1 - beta1^t
  double exact_root_scale;  ///< sqrt(1 - beta2^t)
  N root_scale;
};

/// adam:  w -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon), the form before
/// section
///        2.1's bias-corrected variables: epsilon is added to the uncorrected root, as in
///        tf.compat.v1.train.AdamOptimizer.
/// adamw: w -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon), as torch.optim.AdamW;
///        its weight decay is decoupled.
///
/// The order of operations and which are fused is what ATen's fused kernels do in their vectors on
/// x86-64 with AVX2 or AVX-512 (found by trying, LibTorch 2.11; tests/optim/packed_update_test.cpp
/// compares bits).
template <typename N>
struct Adam : Moments<N> {
  Adam(const OptimizerOptions& options, const GroupRates& rates, int64_t num_updates)
      : Moments<N>(options, num_updates),
        epsilon(static_cast<N>(options.type == "adamw"
                                   ? options.opt_epsilon
                                   : options.opt_epsilon / this->exact_root_scale)),
        minus_rate(static_cast<N>(-rates.learning_rate / this->first_correction)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& m, V& v) const {
    const V corrected_root = this->update(g, m, v);
    return w + m * minus_rate / (corrected_root + epsilon);
  }

  N epsilon;     ///< added to the corrected root
  N minus_rate;  ///< -rate / (1 - beta1^t)
};

/// The direction r of LAMB's update: r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) +
/// weight_decay * w. It stands in the gradient's place afterwards; optim/lamb.h goes on from there.
/// Source: You et al. 2020, algorithm 2.
template <typename N>
struct LambDirection : Moments<N> {
  static constexpr bool kGivesDirection = true;

  LambDirection(const OptimizerOptions& options, const GroupRates& rates, int64_t num_updates)
      : Moments<N>(options, num_updates),
        epsilon(static_cast<N>(options.opt_epsilon)),
        weight_decay(static_cast<N>(rates.weight_decay)),
        share(static_cast<N>(1 / this->first_correction)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& m, V& v) const {
    const V corrected_root = this->update(g, m, v);
    return multiply_add(w, weight_decay, m * share / (corrected_root + epsilon));
  }

  N epsilon, weight_decay;
  N share;  ///< 1 / (1 - beta1^t)
};

}  // namespace lockstep::optim::rules
