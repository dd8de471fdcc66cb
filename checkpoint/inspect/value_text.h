#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

/// Values as JSON text; checkpoint/inspect/inspect.h describes the form.
namespace lockstep::checkpoint {

std::string json_string(std::string_view text);
/// Returns a flat list in row-major order.
std::string json_values(const at::Tensor& tensor);

/// Returns a JSON list of these JSON values, one per line.
std::string json_lines(const std::vector<std::string>& items);

}  // namespace lockstep::checkpoint
