#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Some samples, in the order asked for. Symbols: B = samples, X = the shape of one input.
struct Samples {
  at::Tensor inputs_BX;  ///< float32, CPU
  at::Tensor targets_B;  ///< int64 class numbers, CPU
};

/// An indexable set of samples. Same content on every rank; safe to read from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t num_samples() const = 0;
  virtual int64_t num_classes() const = 0;
  /// Shape X of one input.
  virtual std::vector<int64_t> input_shape() const = 0;
  /// Each index in [0, num_samples()).
  virtual Samples get(std::span<const int64_t> indices_B) const = 0;
  /// Tells data sets of different content apart: SHA-256 in hex.
  virtual std::string digest() const = 0;
};

}  // namespace lockstep::data
