// Operations of the rules on whole tensors. Each creates a tensor, which is why float32 on the CPU
// has kernels instead.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>

#include "optim/rules/numbers.h"

namespace lockstep::optim::rules {

at::Tensor multiply_add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return c + a * b;
}
at::Tensor multiply_add(const at::Tensor& a, double b, const at::Tensor& c) {
  return at::add(c, a, b);
}
at::Tensor root(const at::Tensor& x) { return at::sqrt(x); }
at::Tensor power(const at::Tensor& x, double exponent) { return at::pow(x, exponent); }
at::Tensor sign_of(const at::Tensor& x) { return at::sign(x); }
at::Tensor clamp_min(const at::Tensor& x, double bound) { return at::clamp_min(x, bound); }
at::Tensor clamp_max(const at::Tensor& x, double bound) { return at::clamp_max(x, bound); }

}  // namespace lockstep::optim::rules
