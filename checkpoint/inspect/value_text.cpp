#include "checkpoint/inspect/value_text.h"

#include <cmath>

#include <ATen/core/Tensor.h>
#include <c10/util/complex.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep::checkpoint {
namespace {

std::string json_value(bool value) { return value ? "true" : "false"; }

/// Returns a float in its shortest exact form; non-finite ones as texts.
template <typename Float>
std::string json_float(Float value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos
             ? text + ".0"
             : text;  // without ".0", "-0" would be read as the integer 0
}
std::string json_value(float value) { return json_float(value); }
std::string json_value(double value) { return json_float(value); }
std::string json_value(at::Half value) { return json_float(static_cast<float>(value)); }
std::string json_value(at::BFloat16 value) { return json_float(static_cast<float>(value)); }

template <typename T>
std::string json_value(c10::complex<T> value) {
  return fmt::format("[{}, {}]", json_float(value.real()), json_float(value.imag()));
}
// + promotes int8 and uint8, which would otherwise be formatted as characters.
template <typename Integer>
std::string json_value(Integer value) {
  return fmt::format("{}", +value);
}

template <typename T>
std::string json_list(const at::Tensor& tensor) {
  const T* values = static_cast<const T*>(tensor.const_data_ptr());
  std::string text = "[";
  for (int64_t i = 0; i < tensor.numel(); ++i) text += (i > 0 ? ", " : "") + json_value(values[i]);
  return text + "]";
}

}  // namespace

// JSON is UTF-8; other bytes are written as hex digits.
std::string json_string(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {  // not UTF-8
    std::string hex;
    for (const char byte : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return "{\"hex\": \"" + hex + "\"}";
  }
}

std::string json_values(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return json_list<float>(tensor);
    case at::kDouble:
      return json_list<double>(tensor);
    case at::kHalf:
      return json_list<at::Half>(tensor);
    case at::kBFloat16:
      return json_list<at::BFloat16>(tensor);
    case at::kBool:
      return json_list<bool>(tensor);
    case at::kByte:
      return json_list<uint8_t>(tensor);
    case at::kChar:
      return json_list<int8_t>(tensor);
    case at::kShort:
      return json_list<int16_t>(tensor);
    case at::kInt:
      return json_list<int32_t>(tensor);
    case at::kLong:
      return json_list<int64_t>(tensor);
    case at::kUInt16:
      return json_list<uint16_t>(tensor);
    case at::kUInt32:
      return json_list<uint32_t>(tensor);
    case at::kUInt64:
      return json_list<uint64_t>(tensor);
    case at::kComplexFloat:
      return json_list<c10::complex<float>>(tensor);
    case at::kComplexDouble:
      return json_list<c10::complex<double>>(tensor);
    default:
      return "null";
  }
}

std::string json_lines(const std::vector<std::string>& items) {
  return items.empty() ? "[]" : fmt::format("[\n  {}\n]", fmt::join(items, ",\n  "));
}

}  // namespace lockstep::checkpoint
