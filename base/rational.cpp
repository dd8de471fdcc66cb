// Fractions stay reduced. Every product checks for overflow of 128 bits.
#include "base/rational.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/decimal.h"

namespace lockstep {
namespace {

using Int = Rational::Int;

constexpr int kMaxExactDigits = 18;
constexpr size_t kExponentDigits = 15;
constexpr int kMaxPower = 36;  // ten times this still fits 128 bits

constexpr Int power_of_ten(int exponent) {
  Int power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}
constexpr Int kMax = power_of_ten(kMaxPower);

Int magnitude(Int value) { return value < 0 ? -value : value; }

/// Returns the greatest common divisor (Euclid).
Int common_divisor(Int a, Int b) {
  a = magnitude(a);
  while (b != 0) {
    const Int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/// Returns a * b; nullopt on overflow.
std::optional<Int> product(Int a, Int b) {
  Int result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// Returns the digits of a non-negative number; std::to_string has no 128-bit version.
std::string digits_of(Int value) {
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(value % 10)));
    value /= 10;
  } while (value != 0);
  return digits;
}

/// Inserts a point: 12345 with 3 places is 12.345. Trailing zeros after the point are removed.
std::string with_point(std::string digits, int places) {
  if (digits.size() <= static_cast<size_t>(places))
    digits.insert(0, static_cast<size_t>(places) + 1 - digits.size(), '0');
  if (places == 0) return digits;
  digits.insert(digits.size() - static_cast<size_t>(places), ".");
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.back() == '.') digits.pop_back();
  return digits;
}

/// First significant digits of numerator / denominator > 0: 0.d1d2d3... x 10^exponent.
struct Significant {
  std::string digits;
  int exponent = 0;
};

Significant significant_digits(Int numerator, Int denominator, size_t count) {
  Significant out{digits_of(numerator / denominator), 0};
  if (out.digits == "0") out.digits.clear();
  out.exponent = static_cast<int>(out.digits.size());
  // Long division, one digit at a time.
  for (Int rest = numerator % denominator; out.digits.size() < count;) {
    rest *= 10;
    const int digit = static_cast<int>(rest / denominator);
    rest %= denominator;
    if (digit == 0 && out.digits.empty()) {
      --out.exponent;
    } else {
      out.digits.push_back(static_cast<char>('0' + digit));
    }
  }
  return out;
}

}  // namespace

// Reduces first: only the reduced fraction must be in range.
std::optional<Rational> Rational::of(Int numerator, Int denominator) {
  const Int divisor = common_divisor(numerator, denominator);
  const Rational reduced(numerator / divisor, denominator / divisor);
  if (magnitude(reduced.numerator_) > kMax || reduced.denominator_ > kMax) return std::nullopt;
  return reduced;
}

std::optional<Rational> Rational::parse(std::string_view decimal) {
  const std::optional<Decimal> parsed = Decimal::parse(decimal);
  if (!parsed) return std::nullopt;
  const std::string text = parsed->text();  // [-]digits[.digits], at most 18 of each
  Int digits = 0;
  int places = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') digits = digits * 10 + (c - '0');
    places += places > 0 || c == '.' ? 1 : 0;
  }
  return of(text.front() == '-' ? -digits : digits, power_of_ten(std::max(places - 1, 0)));
}

std::optional<Rational> add(const Rational& a, const Rational& b) {
  // Dividing by the common divisor first keeps the products small.
  const Int divisor = common_divisor(a.denominator_, b.denominator_);
  const auto left = product(a.numerator_, b.denominator_ / divisor);
  const auto right = product(b.numerator_, a.denominator_ / divisor);
  const auto denominator = product(a.denominator_ / divisor, b.denominator_);
  Int sum = 0;
  if (!left || !right || !denominator || __builtin_add_overflow(*left, *right, &sum))
    return std::nullopt;
  return Rational::of(sum, *denominator);
}

std::optional<Rational> subtract(const Rational& a, const Rational& b) {
  return add(a, b.negated());
}

std::optional<Rational> multiply(const Rational& a, const Rational& b) {
  const Int left = common_divisor(a.numerator_, b.denominator_);
  const Int right = common_divisor(b.numerator_, a.denominator_);
  // Cancelling crosswise first keeps the products small.
  const auto numerator = product(a.numerator_ / left, b.numerator_ / right);
  const auto denominator = product(a.denominator_ / right, b.denominator_ / left);
  if (!numerator || !denominator) return std::nullopt;
  return Rational::of(*numerator, *denominator);
}

std::optional<Rational> divide(const Rational& a, const Rational& b) {
  const Int sign = b.numerator_ < 0 ? -1 : 1;
  return multiply(a, Rational(sign * b.denominator_, sign * b.numerator_));
}

std::optional<std::string> Rational::exact_text() const {
  int places = 0;
  Int scaled = magnitude(numerator_);
  // A fraction is a finite decimal if its denominator has only the prime factors 2 and 5.
  for (Int left = denominator_; left != 1; ++places) {
    const Int factor = common_divisor(10, left);
    if (factor == 1 || places == kMaxExactDigits) return std::nullopt;
    left /= factor;
    scaled *= 10 / factor;
    if (scaled >= power_of_ten(kMaxPower)) return std::nullopt;
  }
  if (scaled >= power_of_ten(kMaxExactDigits)) return std::nullopt;
  return with_point(digits_of(scaled), places);
}

std::string Rational::cut_text() const {
  // A very small number would have too few significant digits in plain notation.
  const Int whole = magnitude(numerator_) / denominator_;
  const bool is_small = magnitude(numerator_) < denominator_ / 1'000'000;
  const size_t count = is_small ? kExponentDigits : kMaxExactDigits;
  Significant number = significant_digits(magnitude(numerator_), denominator_, count);
  if (is_small) {
    number.digits.resize(count);
    return with_point(number.digits, static_cast<int>(count) - 1) +
           fmt::format("e{}", number.exponent - 1);
  }
  if (whole >= power_of_ten(kMaxExactDigits)) {  // no digits left for a fraction
    const std::string digits = digits_of(whole);
    return digits.substr(0, kMaxExactDigits) + std::string(digits.size() - kMaxExactDigits, '0');
  }
  const int places = std::min(kMaxExactDigits - std::max(number.exponent, 0), kMaxExactDigits);
  number.digits.resize(static_cast<size_t>(std::max(number.exponent + places, 0)));
  return with_point(number.digits, places);
}

std::string Rational::text() const {
  const std::optional<std::string> exact = exact_text();
  return (numerator_ < 0 ? "-" : "") + (exact ? *exact : cut_text());
}

}  // namespace lockstep
