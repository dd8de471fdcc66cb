#pragma once

#include <array>
#include <cstdint>

#include "optim/options/optimizer_options.h"
#include "optim/rules/numbers.h"

namespace lockstep::optim::rules {

/// SGD: w -= rate * g. Source: tf.compat.v1.train.GradientDescentOptimizer.
template <typename N>
struct Sgd {
  static constexpr std::array<const char*, 0> kSlots{};

  explicit Sgd(double learning_rate) : minus_rate(static_cast<N>(-learning_rate)) {}
  Sgd(const OptimizerOptions& /*options*/, const GroupRates& rates, int64_t /*num_updates*/)
      : Sgd(rates.learning_rate) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g) const {
    return multiply_add(g, minus_rate, w);
  }

  N minus_rate;
};

/// Momentum: m = momentum * m + g;  w -= rate * m, or rate * (g + momentum * m) with Nesterov.
/// Source: tf.compat.v1.train.MomentumOptimizer.
template <typename N>
struct Momentum {
  static constexpr std::array kSlots{"momentum"};

  Momentum(const OptimizerOptions& options, const GroupRates& rates, int64_t /*num_updates*/)
      : momentum(static_cast<N>(options.momentum)),
        minus_rate(static_cast<N>(-rates.learning_rate)),
        nesterov(options.nesterov) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& m) const {
    m = m * momentum + g;
    return multiply_add(nesterov ? multiply_add(m, momentum, g) : m, minus_rate, w);
  }

  N momentum, minus_rate;
  bool nesterov;
};

}  // namespace lockstep::optim::rules
