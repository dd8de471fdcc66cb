#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/params.h"

/// Layers as small values: they add their parameters to a table and compute with ATen's own
/// operations. Names: <layer>.weight, <layer>.bias. Initial values: uniform in ±1/sqrt(fan_in),
/// drawn from (seed, name). Symbols: B = samples, I = inputs, O = outputs, H, W = rows, columns.
namespace lockstep::model {

class Linear {
 public:
  Linear(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t seed,
         ParamTable* params);
  /// [B, I] -> [B, O]
  at::Tensor operator()(const at::Tensor& inputs_BI) const;

 private:
  at::Tensor weight_OI_;
  at::Tensor bias_O_;
};

/// 3×3 convolution with padding 1: [B, I, H, W] -> [B, O, ceil(H / stride), ceil(W / stride)].
class Conv3x3 {
 public:
  Conv3x3(const std::string& name, int64_t num_inputs, int64_t num_outputs, int64_t stride,
          int64_t seed, ParamTable* params);
  at::Tensor operator()(const at::Tensor& inputs_BIHW) const;

 private:
  at::Tensor weight_OI33_;
  at::Tensor bias_O_;
  int64_t stride_;
};

}  // namespace lockstep::model
