// Decimals, fractions and exact sums of floats.
#include "base/exact_numbers.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep {

// Decimal: all arithmetic is in 128-bit integers. Values stay normalized: no trailing zeros after
// the point.

namespace {

constexpr int kMaxDigits = 18;

using Int = Rational::Int;  // 18 digits times 18 digits fit

/// Returns 10^exponent; exponents up to 38 fit.
constexpr Int power_of_ten(int exponent) {
  Int power = 1;
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

// Rational: fractions stay reduced. Every product checks for overflow of 128 bits.

constexpr size_t kExponentDigits = 15;
constexpr int kMaxPower = 36;  // ten times this still fits 128 bits

constexpr Int kMax = power_of_ten(kMaxPower);

Int magnitude(Int value) { return value < 0 ? -value : value; }

/// Returns the greatest common divisor (Euclid).
Int common_divisor(Int a, Int b) {
  for (a = magnitude(a); b != 0;) a = std::exchange(b, a % b);
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

// Superaccumulator: float64 numbers cover the bits 2^-1074 to 2^1023, which are 67 digits of 32
// bits.

constexpr int kDigitBits = 32;
constexpr int kLeastExponent = -1074;  // exponent of the first digit's lowest bit
constexpr int kFractionBits = 52;
constexpr uint64_t kDigitMask = (uint64_t{1} << kDigitBits) - 1;
constexpr int kNumDigits = Superaccumulator::kNumCounters - 1;

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  const std::optional<int> exponent = split_exponent(&text);
  if (!exponent || *exponent < -kMaxDigits || *exponent > kMaxDigits) return std::nullopt;
  const size_t first_digit = text.starts_with('.') ? 1 : 0;
  if (text.size() <= first_digit || !is_digit(text[first_digit])) return std::nullopt;

  Int digits = 0;
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
    if (digits >= power_of_ten(kMaxDigits)) return std::nullopt;
  }
  // Normalizes, so that equal values have equal digits and scale.
  for (; scale > 0 && digits % 10 == 0; --scale) digits /= 10;
  for (; scale < 0 && digits < power_of_ten(kMaxDigits); ++scale) digits *= 10;
  if (scale < 0 || scale > kMaxDigits || digits >= power_of_ten(kMaxDigits)) return std::nullopt;
  if (digits == 0) scale = 0;
  return Decimal(static_cast<int64_t>(negative ? -digits : digits), scale);
}

int64_t Decimal::ceil_times(int64_t count, const Decimal& period, int64_t factor) const {
  const int scale = std::max(scale_, period.scale_);
  // In 128 bits; the multiplication by the factor is checked for overflow.
  const Int sum = Int{digits_} * power_of_ten(scale - scale_) +
                  Int{count} * period.digits_ * power_of_ten(scale - period.scale_);
  const Int unit = power_of_ten(scale);
  Int product = 0;
  check(!__builtin_mul_overflow(sum, Int{factor}, &product),
        "a schedule's step number is out of range");
  const Int quotient = product / unit + (product % unit > 0 ? 1 : 0);
  check(quotient <= INT64_MAX && quotient >= INT64_MIN, "a schedule's step number is out of range");
  return static_cast<int64_t>(quotient);
}

std::optional<Decimal> Decimal::plus(const Decimal& other) const {
  int scale = std::max(scale_, other.scale_);
  Int sum = Int{digits_} * power_of_ten(scale - scale_) +
            Int{other.digits_} * power_of_ten(scale - other.scale_);
  for (; scale > 0 && sum % 10 == 0; --scale) sum /= 10;
  if (sum >= power_of_ten(kMaxDigits) || sum <= -power_of_ten(kMaxDigits)) return std::nullopt;
  return Decimal(static_cast<int64_t>(sum), scale);
}

double Decimal::to_double() const {
  return static_cast<double>(digits_) / static_cast<double>(power_of_ten(scale_));
}

std::string Decimal::text() const {
  return (digits_ < 0 ? "-" : "") + with_point(digits_of(magnitude(digits_)), scale_);
}

// Compares a * 10^scale_b with b * 10^scale_a, so no division is needed.
std::strong_ordering operator<=>(const Decimal& a, const Decimal& b) {
  const Int left = Int{a.digits_} * power_of_ten(b.scale_);
  const Int right = Int{b.digits_} * power_of_ten(a.scale_);
  return left < right   ? std::strong_ordering::less
         : left > right ? std::strong_ordering::greater
                        : std::strong_ordering::equal;
}

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
  return of(parsed->digits_, power_of_ten(parsed->scale_));
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
    if (factor == 1 || places == kMaxDigits) return std::nullopt;
    left /= factor;
    scaled *= 10 / factor;
    if (scaled >= power_of_ten(kMaxPower)) return std::nullopt;
  }
  if (scaled >= power_of_ten(kMaxDigits)) return std::nullopt;
  return with_point(digits_of(scaled), places);
}

std::string Rational::cut_text() const {
  // A very small number would have too few significant digits in plain notation.
  const Int whole = magnitude(numerator_) / denominator_;
  const bool is_small = magnitude(numerator_) < denominator_ / 1'000'000;
  const size_t count = is_small ? kExponentDigits : kMaxDigits;
  Significant number = significant_digits(magnitude(numerator_), denominator_, count);
  if (is_small) {
    number.digits.resize(count);
    return with_point(number.digits, static_cast<int>(count) - 1) +
           fmt::format("e{}", number.exponent - 1);
  }
  if (whole >= power_of_ten(kMaxDigits)) {  // no digits left for a fraction
    const std::string digits = digits_of(whole);
    return digits.substr(0, kMaxDigits) + std::string(digits.size() - kMaxDigits, '0');
  }
  const int places = std::min(kMaxDigits - std::max(number.exponent, 0), kMaxDigits);
  number.digits.resize(static_cast<size_t>(std::max(number.exponent + places, 0)));
  return with_point(number.digits, places);
}

std::string Rational::text() const {
  const std::optional<std::string> exact = exact_text();
  return (numerator_ < 0 ? "-" : "") + (exact ? *exact : cut_text());
}

void Superaccumulator::add(double number) {
  check(!(number < 0), "an exact sum of a negative number");
  if (!std::isfinite(number)) {
    ++counters_[kNumDigits];
    return;
  }
  // -0 counts as 0.
  const auto bits = std::bit_cast<uint64_t>(number) & ~(uint64_t{1} << 63);
  const auto exponent_field = static_cast<int>(bits >> kFractionBits);
  // A denormal number has exponent field 0 and no implicit bit.
  uint64_t whole = bits & ((uint64_t{1} << kFractionBits) - 1);
  if (exponent_field > 0) whole |= uint64_t{1} << kFractionBits;
  const int shift = exponent_field > 0 ? exponent_field - 1 : 0;
  auto digit = static_cast<size_t>(shift / kDigitBits);
  // 53 bits shifted by up to 31 span at most three digits.
  for (auto wide = static_cast<unsigned __int128>(whole) << (shift % kDigitBits); wide != 0;
       wide >>= kDigitBits)
    counters_[digit++] += static_cast<int64_t>(static_cast<uint64_t>(wide) & kDigitMask);
}

double Superaccumulator::value() const {
  if (counters_[kNumDigits] != 0) return std::numeric_limits<double>::quiet_NaN();
  std::array<int64_t, kNumDigits> digits{};
  // Carries are resolved only here. Until then a counter may exceed its digit.
  int64_t carry = 0;
  for (size_t i = 0; i < kNumDigits; ++i) {
    const int64_t sum = counters_[i] + carry;
    digits[i] = sum & static_cast<int64_t>(kDigitMask);
    carry = sum >> kDigitBits;
  }
  // From the lowest digit up, so that small digits are not lost.
  double total = 0;
  for (size_t i = 0; i < kNumDigits; ++i)
    total += std::ldexp(static_cast<double>(digits[i]),
                        kLeastExponent + static_cast<int>(i) * kDigitBits);
  return total;
}

}  // namespace lockstep
