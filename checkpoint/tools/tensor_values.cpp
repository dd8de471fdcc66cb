#include "checkpoint/tools/tensor_values.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

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

namespace {

template <typename T>
double distance(T a, T b) {
  // In unsigned arithmetic: the difference of two signed numbers may overflow.
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    const auto low = static_cast<Unsigned>(a < b ? a : b),
               high = static_cast<Unsigned>(a < b ? b : a);
    return static_cast<double>(static_cast<Unsigned>(high - low));
  } else {
    return std::abs(static_cast<double>(a) - static_cast<double>(b));
  }
}

double distance(c10::complex<float> a, c10::complex<float> b) {
  return std::hypot(distance(a.real(), b.real()), distance(a.imag(), b.imag()));
}
double distance(c10::complex<double> a, c10::complex<double> b) {
  return std::hypot(distance(a.real(), b.real()), distance(a.imag(), b.imag()));
}

/// Returns the larger one; a NaN stays once it occurred.
double larger(double so_far, double next) {
  return std::isnan(so_far) || so_far > next ? so_far : next;
}

/// True if the bits are equal. Unlike ==, a NaN equals itself, and 0 differs from -0.
bool same_bits(const void* a, const void* b, size_t num_bytes) {
  return std::memcmp(a, b, num_bytes) == 0;
}

template <typename T>
TensorDifference compare_as(const T* a, const T* b, int64_t num_elements) {
  TensorDifference result{.num_elements = num_elements};
  for (int64_t i = 0; i < num_elements; ++i) {
    result.num_zeros_a += a[i] == T(0) ? 1 : 0;
    result.num_zeros_b += b[i] == T(0) ? 1 : 0;
    if (same_bits(a + i, b + i, sizeof(T))) continue;
    ++result.num_different;
    result.max_difference = larger(result.max_difference, distance(a[i], b[i]));
  }
  return result;
}

template <typename T>
TensorDifference compare_as(const at::Tensor& a, const at::Tensor& b) {
  return compare_as(static_cast<const T*>(a.const_data_ptr()),
                    static_cast<const T*>(b.const_data_ptr()), a.numel());
}

}  // namespace

TensorDifference compare(const at::Tensor& a_, const at::Tensor& b_) {
  check(a_.scalar_type() == b_.scalar_type() && a_.sizes() == b_.sizes(),
        "tensors of other forms are not compared element by element");
  const at::Tensor a = a_.contiguous(), b = b_.contiguous();
  switch (a.scalar_type()) {
    case at::kBool:  // one byte, 0 or 1
    case at::kByte:
      return compare_as<uint8_t>(a, b);
    case at::kChar:
      return compare_as<int8_t>(a, b);
    case at::kShort:
      return compare_as<int16_t>(a, b);
    case at::kInt:
      return compare_as<int32_t>(a, b);
    case at::kLong:
      return compare_as<int64_t>(a, b);
    case at::kUInt16:
      return compare_as<uint16_t>(a, b);
    case at::kUInt32:
      return compare_as<uint32_t>(a, b);
    case at::kUInt64:
      return compare_as<uint64_t>(a, b);
    case at::kHalf:
      return compare_as<at::Half>(a, b);
    case at::kBFloat16:
      return compare_as<at::BFloat16>(a, b);
    case at::kFloat:
      return compare_as<float>(a, b);
    case at::kDouble:
      return compare_as<double>(a, b);
    case at::kComplexFloat:
      return compare_as<c10::complex<float>>(a, b);
    case at::kComplexDouble:
      return compare_as<c10::complex<double>>(a, b);
    default:
      check(false, "a checkpoint has no such type");
      return {};
  }
}

}  // namespace lockstep::checkpoint
