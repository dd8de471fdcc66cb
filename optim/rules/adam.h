#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "optim/options/optimizer_options.h"
#include "optim/rules/numbers.h"

namespace lockstep::optim::rules {

/// adam:  w -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon): epsilon is added to
///        the uncorrected root, as in tf.compat.v1.train.AdamOptimizer.
/// adamw: w -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon), as torch.optim.AdamW;
///        its weight decay is decoupled.
///
/// Both moments start at 0: m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g². `num_updates` is t,
/// this update included, at least 1. Source: Kingma & Ba 2015.
///
/// The order of operations and their fusion match ATen's fused vector kernels on x86-64 with AVX2
/// or AVX-512 (determined by experiment, LibTorch 2.11). tests/optim/packed_update_test.cpp
/// compares bits.
template <typename N>
struct Adam {
  static constexpr std::array kSlots{"m", "v"};

  Adam(const OptimizerOptions& options, const GroupRates& rates, int64_t num_updates)
      : first_share(static_cast<N>(1 - options.adam_beta1)),
        second_decay(static_cast<N>(options.adam_beta2)),
        second_share(static_cast<N>(1 - options.adam_beta2)),
        first_correction(1 - std::pow(options.adam_beta1, static_cast<double>(num_updates))),
        exact_root_scale(
            std::sqrt(1 - std::pow(options.adam_beta2, static_cast<double>(num_updates)))),
        root_scale(static_cast<N>(exact_root_scale)),
        epsilon(static_cast<N>(options.type == "adamw" ? options.opt_epsilon
                                                       : options.opt_epsilon / exact_root_scale)),
        minus_rate(static_cast<N>(-rates.learning_rate / first_correction)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& m, V& v) const {
    m = lerp(m, g, first_share);
    v = multiply_add(g * second_share, g, v * second_decay);
    const V corrected_root = root(v) / root_scale;
    return w + m * minus_rate / (corrected_root + epsilon);
  }

  N first_share;            ///< 1 - beta1
  N second_decay;           ///< beta2
  N second_share;           ///< 1 - beta2
  double first_correction;  ///< 1 - beta1^t
  double exact_root_scale;  ///< sqrt(1 - beta2^t)
  N root_scale;
  N epsilon;     ///< added to the corrected root
  N minus_rate;  ///< -rate / (1 - beta1^t)
};

}  // namespace lockstep::optim::rules
