#pragma once

#include <algorithm>
#include <cmath>

namespace at {
class Tensor;
}

/// Operations of the update rules, for two kinds of numbers. One is a float in a kernel, the other
/// a whole tensor if no own kernel applies (other types, devices). Rules also use + - * /.
///
/// All operations on floats follow IEEE, and kernel sources are compiled without contraction
/// (optim/CMakeLists.txt). So an element gets the same bits in a vector, in the remainder after the
/// last vector, and on every path.
namespace lockstep::optim::rules {

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

/// Returns a * b + c, rounded once.
LOCKSTEP_INLINE float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
LOCKSTEP_INLINE float root(float x) { return std::sqrt(x); }
LOCKSTEP_INLINE float power(float x, float exponent) { return std::pow(x, exponent); }
/// Returns -1, 0 or 1.
LOCKSTEP_INLINE float sign_of(float x) { return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F; }
/// Return the larger, and the smaller, of x and the bound.
LOCKSTEP_INLINE float clamp_min(float x, float bound) { return x < bound ? bound : x; }
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

}  // namespace lockstep::optim::rules
