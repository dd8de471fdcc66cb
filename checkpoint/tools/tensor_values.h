#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

/// Values as JSON text, in the form that checkpoint/tools/inspect.h describes, and differences of
/// tensors.
namespace lockstep::checkpoint {

std::string json_string(std::string_view text);
/// Returns a flat list in row-major order.
std::string json_values(const at::Tensor& tensor);

/// Returns a JSON list of these JSON values, one per line.
std::string json_lines(const std::vector<std::string>& items);

/// Difference of two tensors of one type and shape, element by element.
struct TensorDifference {
  int64_t num_elements = 0;
  int64_t num_different = 0;  ///< by bits: -0 differs from 0, a NaN not from itself
  /// Largest |a - b| over the elements whose bits differ: 0 for -0 and 0; NaN if one of the two is
  /// a NaN. Exact for integers up to 2^53.
  double max_difference = 0;
  int64_t num_zeros_a = 0, num_zeros_b = 0;

  bool is_same() const { return num_different == 0; }
};

/// Compares CPU tensors of one dtype and shape, of any type that a checkpoint can have
/// (tensor_type.h).
TensorDifference compare(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::checkpoint
