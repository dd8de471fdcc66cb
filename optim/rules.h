#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>

#include "base/simd/simd.h"
#include "optim/optimizer_options.h"

namespace at {
class Tensor;
}

/// Update rules, and their operations for two kinds of numbers. One is a float in a kernel, the
/// other a whole tensor if no own kernel applies (other types, devices). Rules also use + - * /.
///
/// All operations on floats follow IEEE, and kernel sources are compiled without contraction
/// (lockstep_kernels() in CMake). So an element gets the same bits in a vector, in the remainder
/// after the last vector, and on every path.
namespace lockstep::optim::rules {

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

/// Returns a * b + c, rounded once.
LOCKSTEP_INLINE float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
LOCKSTEP_INLINE float root(float x) { return std::sqrt(x); }
LOCKSTEP_INLINE float power(float x, float exponent) { return std::pow(x, exponent); }
/// Returns -1, 0 or 1.
LOCKSTEP_INLINE float sign_of(float x) { return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F; }
/// Returns the larger of x and the bound.
LOCKSTEP_INLINE float clamp_min(float x, float bound) { return x < bound ? bound : x; }
/// Returns the smaller of x and the bound.
LOCKSTEP_INLINE float clamp_max(float x, float bound) { return x > bound ? bound : x; }

at::Tensor multiply_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c);
at::Tensor multiply_add(const at::Tensor& a, double b, const at::Tensor& c);
at::Tensor root(const at::Tensor& x);
at::Tensor power(const at::Tensor& x, double exponent);
at::Tensor sign_of(const at::Tensor& x);
at::Tensor clamp_min(const at::Tensor& x, double bound);
at::Tensor clamp_max(const at::Tensor& x, double bound);

/// Returns mean + share (x - mean), in the form that is exact at both ends. (It selects one of two
/// numbers instead of one of two sums, which compilers can vectorise.)
template <typename V, typename N>
LOCKSTEP_INLINE V lerp(const V& mean, const V& x, N share) {
  const bool begins_at_mean = share < N(0.5);
  return multiply_add(x - mean, begins_at_mean ? share : share - 1, begins_at_mean ? mean : x);
}

/// Weight decay, applied before the rule. L2 adds weight_decay * w to the gradient. Decoupled decay
/// subtracts rate * weight_decay * w from w, at most all of it (Loshchilov & Hutter 2019, in
/// PyTorch's form).
template <typename N>
struct WeightDecay {
  N l2 = 0;
  N minus_share = 0;

  WeightDecay() = default;
  WeightDecay(const OptimizerOptions& options, const GroupRates& rates)
      : l2(static_cast<N>(options.decoupled ? 0 : rates.weight_decay)),
        minus_share(static_cast<N>(
            options.decoupled ? -std::min(1.0, rates.learning_rate * rates.weight_decay) : 0)) {}
};

/// SGD: w -= rate * g. Source: tf.compat.v1.train.GradientDescentOptimizer.
template <typename N>
struct Sgd {
  static constexpr std::array<const char*, 0> kSlots{};

  Sgd(const OptimizerOptions& /*options*/, const GroupRates& rates, int64_t /*num_updates*/)
      : minus_rate(static_cast<N>(-rates.learning_rate)) {}

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

/// adam:  w -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon): epsilon is added to
///        the uncorrected root, as in tf.compat.v1.train.AdamOptimizer.
/// adamw, and muon for all but matrices:
///        w -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon), as torch.optim.AdamW;
///        its weight decay is decoupled.
///
/// Both moments start at 0: m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g². `num_updates` is t,
/// this update included, at least 1. Source: Kingma & Ba 2015.
///
/// The order of operations and their fusion match ATen's fused vector kernels on x86-64 with AVX2
/// or AVX-512 (LibTorch 2.11). tests/optim/packed_update_test.cpp compares bits.
template <typename N>
struct Adam {
  static constexpr std::array kSlots{"m", "v"};
  /// True if updates are counted by parameter, as in PyTorch. TensorFlow's Adam has one count.
  static bool counts_own_updates(const OptimizerOptions& options) { return options.type != "adam"; }

  Adam(const OptimizerOptions& options, const GroupRates& rates, int64_t num_updates)
      : first_share(static_cast<N>(1 - options.adam_beta1)),
        second_decay(static_cast<N>(options.adam_beta2)),
        second_share(static_cast<N>(1 - options.adam_beta2)),
        first_correction(1 - std::pow(options.adam_beta1, static_cast<double>(num_updates))),
        exact_root_scale(
            std::sqrt(1 - std::pow(options.adam_beta2, static_cast<double>(num_updates)))),
        root_scale(static_cast<N>(exact_root_scale)),
        epsilon(static_cast<N>(options.type == "adam" ? options.opt_epsilon / exact_root_scale
                                                      : options.opt_epsilon)),
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

// Rules whose means of squares have an initial value in TensorFlow. Here every slot starts at 0 and
// contains only the gradients' part. The remainder of the initial value is a function of the number
// of updates and is added where it is used (docs/decisions/0028-slots-start-at-zero.md).

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
  /// The initial value belongs to a variable.
  static bool counts_own_updates(const OptimizerOptions& /*options*/) { return true; }

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

/// List of all rules on floats, as Of<rule, ...>: each has a kernel on each SIMD path.
template <template <typename...> typename Of>
using OfAll = Of<Sgd<float>, Momentum<float>, Adam<float>, Adagrad<float>, Adadelta<float>,
                 RmsProp<float>, Ftrl<float>, FtrlOfRoot<float>, Lion<float>>;

/// Applies the rule to element i, with slots in the order of kSlots. Slots that the rule lacks may
/// be null.
template <typename Rule, typename V>
LOCKSTEP_INLINE V apply(const Rule& rule, const V& w, const V& g, V* first, V* second, int64_t i) {
  if constexpr (Rule::kSlots.size() == 2)
    return rule(w, g, first[i], second[i]);
  else if constexpr (Rule::kSlots.size() == 1)
    return rule(w, g, first[i]);
  else
    return rule(w, g);
}

}  // namespace lockstep::optim::rules

namespace lockstep::optim {

/// Updates `num` contiguous elements by a rule. Arrays do not overlap. Slots that the rule does not
/// have may be null. Values and slots are updated in place.
template <typename Rule>
using UpdateKernel = void (*)(int64_t num, float* values, float* grads, float* first_slot,
                              float* second_slot, const rules::WeightDecay<float>& decay,
                              const Rule& rule);

/// Block size in elements. Values and gradients of a block, packed and unpacked, fit the
/// first-level cache (bench/results/tried.md).
inline constexpr int64_t kBlock = 512;

/// Kept elements of kBlock elements, packed.
struct PackedBlock {
  static constexpr int64_t kSlack = 16;  ///< a path may read and write so many items more
  using Floats = std::array<float, kBlock + kSlack>;

  int64_t num_kept = 0;
  alignas(64) Floats values, grads;
  std::array<uint16_t, kBlock + kSlack> positions;  ///< for a path's own use: original positions
};

/// Implementation of the rules and of packing. All paths give the same bits.
struct UpdateKernels {
  template <typename... Rule>
  using Of = std::tuple<UpdateKernel<Rule>...>;

  /// Fills a block from kBlock or fewer elements: pack_kept() of base/simd/bit_mask.h for values
  /// and gradients in one pass.
  void (*pack)(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
               PackedBlock& block);
  /// Reverses pack(): writes the block's values to the kept elements of `dense`, from which the
  /// block was filled. Other elements do not change.
  void (*put_kept)(const PackedBlock& block, const uint8_t* bits, int64_t num_elements,
                   float* dense);
  /// Converts a block's bytes to numbers (optim/state_blocks.h). `is_positive`: none is negative.
  void (*dequantize)(int64_t num, const uint8_t* codes, float scale, bool is_positive,
                     float* values);
  /// Converts at most kStateBlock numbers to bytes, and returns their scale. Non-finite numbers
  /// give a non-finite scale.
  float (*quantize)(int64_t num, const float* values, bool is_positive, uint8_t* codes);
  /// Moves averages: averages[i] += share * (weights[i] - averages[i]).
  void (*follow)(int64_t num, const float* weights, float share, float* averages);
  rules::OfAll<Of> of_rules;

  template <typename Rule>
  UpdateKernel<Rule> of() const {
    return std::get<UpdateKernel<Rule>>(of_rules);
  }
};

/// Smallest number of elements for a thread of its own.
inline constexpr int64_t kGrain = 32768;

/// Returns the kernels of a path that simd_paths() lists.
const UpdateKernels& update_kernels(SimdPath path);

}  // namespace lockstep::optim
