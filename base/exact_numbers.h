#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Numbers without rounding errors: decimals, fractions, sums of floats.
namespace lockstep {

/// Exact decimal number: digits / 10^scale. Epochs are decimals, and in binary floating point
/// ceil(1.1 * 100) would be 111. At most 18 significant digits, |exponent| <= 18.
class Decimal {
 public:
  Decimal() = default;
  explicit Decimal(int64_t whole) : digits_(whole) {}

  /// Parses a text. Grammar: [sign] (digits [. [digits]] | . digits) [(e|E) [sign] digits]. Returns
  /// nullopt for another form or too many digits.
  static std::optional<Decimal> parse(std::string_view text);

  /// Returns ceil((this + count * period) * factor), exactly. With factor = steps per epoch it is
  /// the step of update `count` of a period.
  int64_t ceil_times(int64_t factor) const { return ceil_times(0, Decimal(), factor); }
  int64_t ceil_times(int64_t count, const Decimal& period, int64_t factor) const;

  /// Returns this + other, exactly; nullopt if the sum has more than 18 digits.
  std::optional<Decimal> plus(const Decimal& other) const;

  double to_double() const;
  /// Returns the shortest text of the value: 2.5, 10, 0.05.
  std::string text() const;

  bool operator==(const Decimal& other) const = default;  // equal values have equal members
  friend std::strong_ordering operator<=>(const Decimal& a, const Decimal& b);

 private:
  friend class Rational;
  Decimal(int64_t digits, int scale) : digits_(digits), scale_(scale) {}

  int64_t digits_ = 0;
  int scale_ = 0;  // 0 to 18; trailing zeros removed
};

/// Exact fraction, for arithmetic with the same result on every machine. Numerator and denominator
/// are at most 10^36. A larger result is nullopt, never rounded.
class Rational {
 public:
  __extension__ using Int = __int128;

  Rational() = default;
  explicit Rational(int64_t whole) : numerator_(whole) {}

  /// Parses a decimal number as Decimal::parse() does.
  static std::optional<Rational> parse(std::string_view decimal);

  bool is_zero() const { return numerator_ == 0; }
  Rational negated() const { return Rational(-numerator_, denominator_); }

  friend std::optional<Rational> add(const Rational& a, const Rational& b);
  friend std::optional<Rational> subtract(const Rational& a, const Rational& b);
  friend std::optional<Rational> multiply(const Rational& a, const Rational& b);
  /// Divides; b must not be zero.
  friend std::optional<Rational> divide(const Rational& a, const Rational& b);

  /// Returns a decimal number that Decimal::parse() reads. It is exact if 18 digits suffice, with
  /// at most 18 after the point. Otherwise it is cut towards zero. Below 1e-6 it has 15 digits and
  /// an exponent, which a double can read.
  ///
  /// It is never rounded up. So ceil(text x S) is ceil(value x S) for any S whose product is whole
  /// or far from whole. For instance, epoch eval(20 / 3) with 3 steps per epoch is step 20, not 21.
  std::string text() const;

 private:
  Rational(Int numerator, Int denominator) : numerator_(numerator), denominator_(denominator) {}
  /// Returns the reduced fraction; nullopt if it is too large.
  static std::optional<Rational> of(Int numerator, Int denominator);
  std::optional<std::string> exact_text() const;
  std::string cut_text() const;

  Int numerator_ = 0;
  Int denominator_ = 1;  // > 0; no common divisor with numerator_
};

/// Exact sum of non-negative float64 numbers, independent of order and grouping. So each rank may
/// add some numbers and join the sums in any way. The result has the same bits as on one rank that
/// adds all.
///
/// A number is a 53-bit integer times a power of two. It is added to two or three counters of
/// 32-bit digits. They have 31 more bits for carries, enough for 2^31 additions.
///
/// Method: a small superaccumulator (R. Neal, Fast exact summation using small and large
/// superaccumulators, 2015).
class Superaccumulator {
 public:
  /// Number of counters: the digits, and one for infinite numbers and NaNs. Sums are joined by
  /// adding counter by counter.
  static constexpr int kNumCounters = 68;

  void add(double number);
  /// Returns the sum as float64, which may differ from the nearest one in the last bit; NaN if a
  /// number was not finite.
  double value() const;

  std::array<int64_t, kNumCounters>& counters() { return counters_; }
  const std::array<int64_t, kNumCounters>& counters() const { return counters_; }

 private:
  std::array<int64_t, kNumCounters> counters_{};
};

}  // namespace lockstep
