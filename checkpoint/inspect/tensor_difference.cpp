#include "checkpoint/inspect/tensor_difference.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include "base/error.h"

namespace lockstep::checkpoint {
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
      check(false, "a save holds no such type");
      return {};
  }
}

}  // namespace lockstep::checkpoint
