// All arithmetic is in 128-bit integers. Values stay normalized: no trailing zeros after the point.
#include "base/decimal.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr int kMaxDigits = 18;

__extension__ using Wide = __int128;  // 18 digits times 18 digits fit

/// Returns 10^exponent; exponents up to 38 fit.
Wide wide_power_of_ten(int exponent) {
  Wide power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Removes the exponent from the end of the text and returns it; nullopt if it is malformed.
std::optional<int> split_exponent(std::string_view* text) {
  const size_t mark = text->find_first_of("eE");
  if (mark == std::string_view::npos) return 0;
  std::string_view exponent = text->substr(mark + 1);
  *text = text->substr(0, mark);
  if (!exponent.empty() && exponent.front() == '+') exponent.remove_prefix(1);
  if (exponent.empty() || (exponent.front() != '-' && !is_digit(exponent.front())))
    return std::nullopt;
  int value = 0;
  const auto [end, fault] =
      std::from_chars(exponent.data(), exponent.data() + exponent.size(), value);
  if (fault != std::errc() || end != exponent.data() + exponent.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  const std::optional<int> exponent = split_exponent(&text);
  if (!exponent || *exponent < -kMaxDigits || *exponent > kMaxDigits) return std::nullopt;
  const size_t first_digit = text.starts_with('.') ? 1 : 0;
  if (text.size() <= first_digit || !is_digit(text[first_digit])) return std::nullopt;

  Wide digits = 0;
  int scale = -*exponent;
  bool after_point = false;
  for (const char c : text) {
    if (c == '.' && !after_point) {
      after_point = true;
      continue;
    }
    if (!is_digit(c)) return std::nullopt;
    digits = digits * 10 + (c - '0');
    scale += after_point ? 1 : 0;
    if (digits >= wide_power_of_ten(kMaxDigits)) return std::nullopt;
  }
  // Normalizes, so that equal values have equal digits and scale.
  for (; scale > 0 && digits % 10 == 0; --scale) digits /= 10;
  for (; scale < 0 && digits < wide_power_of_ten(kMaxDigits); ++scale) digits *= 10;
  if (scale < 0 || scale > kMaxDigits || digits >= wide_power_of_ten(kMaxDigits))
    return std::nullopt;
  if (digits == 0) scale = 0;
  return Decimal(static_cast<int64_t>(negative ? -digits : digits), scale);
}

int64_t Decimal::ceil_times(int64_t count, const Decimal& period, int64_t factor) const {
  const int scale = std::max(scale_, period.scale_);
  // In 128 bits; the multiplication by the factor is checked for overflow.
  const Wide sum = Wide{digits_} * wide_power_of_ten(scale - scale_) +
                   Wide{count} * period.digits_ * wide_power_of_ten(scale - period.scale_);
  const Wide unit = wide_power_of_ten(scale);
  Wide product = 0;
  check(!__builtin_mul_overflow(sum, Wide{factor}, &product),
        "a schedule's step number is out of range");
  const Wide quotient = product / unit + (product % unit > 0 ? 1 : 0);
  check(quotient <= INT64_MAX && quotient >= INT64_MIN, "a schedule's step number is out of range");
  return static_cast<int64_t>(quotient);
}

std::optional<Decimal> Decimal::plus(const Decimal& other) const {
  int scale = std::max(scale_, other.scale_);
  Wide sum = Wide{digits_} * wide_power_of_ten(scale - scale_) +
             Wide{other.digits_} * wide_power_of_ten(scale - other.scale_);
  for (; scale > 0 && sum % 10 == 0; --scale) sum /= 10;
  if (sum >= wide_power_of_ten(kMaxDigits) || sum <= -wide_power_of_ten(kMaxDigits))
    return std::nullopt;
  return Decimal(static_cast<int64_t>(sum), scale);
}

double Decimal::to_double() const {
  return static_cast<double>(digits_) / static_cast<double>(wide_power_of_ten(scale_));
}

std::string Decimal::text() const {
  std::string digits = std::to_string(digits_ < 0 ? -digits_ : digits_);
  if (scale_ > 0) {
    if (digits.size() <= static_cast<size_t>(scale_))
      digits.insert(0, scale_ + 1 - digits.size(), '0');
    digits.insert(digits.size() - scale_, ".");
  }
  return (digits_ < 0 ? "-" : "") + digits;
}

// Compares a * 10^scale_b with b * 10^scale_a, so no division is needed.
int compare(const Decimal& a, const Decimal& b) {
  const Wide left = Wide{a.digits_} * wide_power_of_ten(b.scale_);
  const Wide right = Wide{b.digits_} * wide_power_of_ten(a.scale_);
  return left < right ? -1 : left > right ? 1 : 0;
}

}  // namespace lockstep
