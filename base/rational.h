#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

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

}  // namespace lockstep
