#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::train {

/// Enables LibTorch's autocast on this thread for its lifetime: layers compute in a narrower type
/// if that is safe (linear layers, convolutions; LibTorch's lists decide). Weights stay float32.
/// fp32: no effect.
///
/// Use it around forward only: backward computes in the types that forward chose.
class Autocast {
 public:
  /// precision: fp32 | bf16 | fp16.
  Autocast(const std::string& precision, at::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool is_on_;
  const at::DeviceType device_type_;
  bool was_enabled_ = false;
  at::ScalarType dtype_before_ = at::kFloat;
};

}  // namespace lockstep::train
