#include "checkpoint/tools/tensor_values.h"

#include <cmath>
#include <cstring>
#include <type_traits>

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

template <typename... Ts>
struct Types {};
using NumberTypes =
    Types<bool, uint8_t, int8_t, int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, at::Half,
          at::BFloat16, float, double, c10::complex<float>, c10::complex<double>>;

/// Calls use<T>() with the C++ type T of the tensor's elements; false if it is none of the types.
template <typename Use, typename... Ts>
bool with_type(const at::Tensor& tensor, const Use& use, Types<Ts...> /*types*/) {
  const auto use_if = [&]<typename T>() {
    const bool is_it = tensor.scalar_type() == c10::CppTypeToScalarType<T>::value;
    if (is_it) use.template operator()<T>();
    return is_it;
  };
  return (use_if.template operator()<Ts>() || ...);
}
template <typename Use>
bool with_type(const at::Tensor& tensor, const Use& use) {
  return with_type(tensor, use, NumberTypes());
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
  std::string text = "null";
  (void)with_type(tensor, [&]<typename T>() { text = json_list<T>(tensor); });
  return text;
}

std::string json_lines(const std::vector<std::string>& items) {
  return items.empty() ? "[]" : fmt::format("[\n  {}\n]", fmt::join(items, ",\n  "));
}

template <typename T>
static double distance(T a, T b) {
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

template <typename T>
static double distance(c10::complex<T> a, c10::complex<T> b) {
  return std::hypot(distance(a.real(), b.real()), distance(a.imag(), b.imag()));
}

/// Returns the larger one; a NaN stays once it occurred.
static double larger(double so_far, double next) {
  return std::isnan(so_far) || so_far > next ? so_far : next;
}

/// True if the bits are equal. Unlike ==, a NaN equals itself, and 0 differs from -0.
static bool same_bits(const void* a, const void* b, size_t num_bytes) {
  return std::memcmp(a, b, num_bytes) == 0;
}

template <typename T>
static TensorDifference compare_as(const at::Tensor& tensor_a, const at::Tensor& tensor_b) {
  const auto* const a = static_cast<const T*>(tensor_a.const_data_ptr());
  const auto* const b = static_cast<const T*>(tensor_b.const_data_ptr());
  TensorDifference result{.num_elements = tensor_a.numel()};
  for (int64_t i = 0; i < result.num_elements; ++i) {
    result.num_zeros_a += a[i] == T(0) ? 1 : 0;
    result.num_zeros_b += b[i] == T(0) ? 1 : 0;
    if (same_bits(a + i, b + i, sizeof(T))) continue;
    ++result.num_different;
    result.max_difference = larger(result.max_difference, distance(a[i], b[i]));
  }
  return result;
}

TensorDifference compare(const at::Tensor& a_, const at::Tensor& b_) {
  check(a_.scalar_type() == b_.scalar_type() && a_.sizes() == b_.sizes(),
        "tensors of other forms are not compared element by element");
  const at::Tensor a = a_.contiguous(), b = b_.contiguous();
  TensorDifference result;
  const bool is_known = with_type(a, [&]<typename T>() {
    // A bool is one byte, 0 or 1.
    result = compare_as<std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>(a, b);
  });
  check(is_known, "a checkpoint has no such type");
  return result;
}

}  // namespace lockstep::checkpoint
