#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// An exact fraction, for arithmetic whose result must be the same on every machine. Numerator and
/// denominator are at most 10^36; what would pass that is nothing (std::nullopt), never rounded.
class Rational {
 public:
  __extension__ using Int = __int128;

  Rational() = default;
  explicit Rational(int64_t whole) : numerator_(whole) {}

  /// A decimal number as Decimal::parse() reads it.
  static std::optional<Rational> parse(std::string_view decimal);

  bool is_zero() const { return numerator_ == 0; }
  Rational negated() const { return Rational(-numerator_, denominator_); }

  friend std::optional<Rational> add(const Rational& a, const Rational& b);
  friend std::optional<Rational> subtract(const Rational& a, const Rational& b);
  friend std::optional<Rational> multiply(const Rational& a, const Rational& b);
  /// b must not be zero.
  friend std::optional<Rational> divide(const Rational& a, const Rational& b);

  /// As a decimal number: exactly if 18 digits are enough, at most 18 of them behind the point;
  /// else cut towards zero to as many, so that Decimal::parse() reads it (below 1e-6, where that
  /// would leave few: 15 digits and an exponent, which a double reads). It is never rounded up, so
  /// that ceil(text x S) is ceil(value x S) for any S that leaves the product whole or far
  /// from it: an epoch of eval(20 / 3) with 3 steps per epoch is step 20, not 21.
  std::string text() const;

 private:
  Rational(Int numerator, Int denominator) : numerator_(numerator), denominator_(denominator) {}
  /// Reduced; nothing if it is too large.
  static std::optional<Rational> of(Int numerator, Int denominator);
  std::optional<std::string> exact_text() const;
  std::string cut_text() const;

  Int numerator_ = 0;
  Int denominator_ = 1;  // > 0; no common divisor with numerator_
};

}  // namespace lockstep
