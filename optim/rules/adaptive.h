#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "optim/options/optimizer_options.h"
#include "optim/rules/numbers.h"

/// Rules whose means of squares have an initial value in TensorFlow. Here every slot starts at 0
/// and contains only the gradients' part. The remainder of the initial value is a function of the
/// number of updates and is added where it is used (docs/decisions/0028-slots-start-at-zero.md). So
/// a pruned weight's slots are 0 with every rule.
namespace lockstep::optim::rules {

/// Adagrad: a += g²;  w -= rate * g / sqrt(initial + a). Source: Duchi et al. 2011, in the form of
/// tf.compat.v1.train.AdagradOptimizer, without epsilon.
template <typename N>
struct Adagrad {
  static constexpr std::array kSlots{"accumulator"};

  Adagrad(const OptimizerOptions& options, const GroupRates& rates, int64_t /*num_updates*/)
      : initial(static_cast<N>(options.adagrad_initial_accumulator_value)),
        minus_rate(static_cast<N>(-rates.learning_rate)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& a) const {
    a = multiply_add(g, g, a);
    return w + g * minus_rate / root(a + initial);
  }

  N initial, minus_rate;
};

/// Adadelta: a = rho a + (1 - rho) g²;  u = sqrt(d + epsilon) / sqrt(a + epsilon) * g; d = rho d +
/// (1 - rho) u²;  w -= rate * u. Source: Zeiler 2012, in the form of
/// tf.compat.v1.train.AdadeltaOptimizer.
template <typename N>
struct Adadelta {
  static constexpr std::array kSlots{"accumulator", "update_accumulator"};

  Adadelta(const OptimizerOptions& options, const GroupRates& rates, int64_t /*num_updates*/)
      : rho(static_cast<N>(options.adadelta_rho)),
        share(static_cast<N>(1 - options.adadelta_rho)),
        epsilon(static_cast<N>(options.opt_epsilon)),
        minus_rate(static_cast<N>(-rates.learning_rate)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& a, V& d) const {
    a = multiply_add(g * share, g, a * rho);
    const V u = root((d + epsilon) / (a + epsilon)) * g;
    d = multiply_add(u * share, u, d * rho);
    return multiply_add(u, minus_rate, w);
  }

  N rho, share, epsilon, minus_rate;
};

/// RMSProp: s = decay s + (1 - decay) g², starting at 1;  m = momentum m + rate * g / sqrt(s +
/// epsilon);  w -= m. Source: Hinton's lecture 6, in the form of
/// tf.compat.v1.train.RMSPropOptimizer.
template <typename N>
struct RmsProp {
  static constexpr std::array kSlots{"rms", "momentum"};

  RmsProp(const OptimizerOptions& options, const GroupRates& rates, int64_t num_updates)
      : decay(static_cast<N>(options.rmsprop_decay)),
        share(static_cast<N>(1 - options.rmsprop_decay)),
        floor(static_cast<N>(std::pow(options.rmsprop_decay, static_cast<double>(num_updates)) +
                             options.opt_epsilon)),
        momentum(static_cast<N>(options.rmsprop_momentum)),
        rate(static_cast<N>(rates.learning_rate)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& s, V& m) const {
    s = multiply_add(g * share, g, s * decay);
    m = multiply_add(m, momentum, g * rate / root(s + floor));
    return w - m;
  }

  N decay, share;
  N floor;  ///< decay^t, the remainder of the initial value, plus epsilon
  N momentum, rate;
};

/// FTRL-Proximal. n and n' are the sums of squares before and after this gradient, p = -power:
///   l += g - (n'^p - n^p) / rate * w;  q = n'^p / rate + 2 l2;
///   w = (sign(l) l1 - l) / q if |l| > l1, else 0.
/// Source: McMahan et al. 2013, in the form of tf.compat.v1.train.FtrlOptimizer. kIsRoot: p is 1/2.
template <typename N, bool kIsRoot>
struct FtrlOfPower {
  static constexpr std::array kSlots{"accumulator", "linear"};
  static constexpr bool kDividesByRate = true;  ///< at rate 0 nothing changes

  FtrlOfPower(const OptimizerOptions& options, const GroupRates& rates, int64_t /*num_updates*/)
      : initial(static_cast<N>(options.ftrl_initial_accumulator_value)),
        exponent(static_cast<N>(-options.ftrl_learning_rate_power)),
        rate(static_cast<N>(rates.learning_rate)),
        l1(static_cast<N>(options.ftrl_l1)),
        twice_l2(static_cast<N>(2 * options.ftrl_l2)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& a, V& l) const {
    const V before = raised<V>(a + initial);
    a = multiply_add(g, g, a);
    const V now = raised<V>(a + initial);
    l = l + g - (now - before) / rate * w;
    const V beyond = clamp_max(clamp_min(l, -l1), l1) - l;
    return beyond / clamp_min(now / rate + twice_l2, kSmallest);
  }

  template <typename V>
  LOCKSTEP_INLINE V raised(const V& n) const {
    if constexpr (kIsRoot)
      return root(n);
    else
      return power(n, exponent);
  }

  /// Least divisor, so that 0 / 0 is 0 before the first gradient.
  static constexpr N kSmallest = N(1e-37);

  N initial, exponent, rate, l1, twice_l2;
};

template <typename N>
using Ftrl = FtrlOfPower<N, false>;
template <typename N>
using FtrlOfRoot = FtrlOfPower<N, true>;

/// Lion: w -= rate * sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g. Source: Chen et al. 2023. Its
/// weight decay is decoupled.
template <typename N>
struct Lion {
  static constexpr std::array kSlots{"m"};

  Lion(const OptimizerOptions& options, const GroupRates& rates, int64_t /*num_updates*/)
      : direction_share(static_cast<N>(1 - options.adam_beta1)),
        share(static_cast<N>(1 - options.adam_beta2)),
        minus_rate(static_cast<N>(-rates.learning_rate)) {}

  template <typename V>
  LOCKSTEP_INLINE V operator()(const V& w, const V& g, V& m) const {
    const V direction = sign_of(lerp(m, g, direction_share));
    m = lerp(m, g, share);
    return multiply_add(direction, minus_rate, w);
  }

  N direction_share, share, minus_rate;
};

}  // namespace lockstep::optim::rules
