#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

  friend int compare(const Decimal& a, const Decimal& b);
  bool operator==(const Decimal& other) const { return compare(*this, other) == 0; }
  bool operator<(const Decimal& other) const { return compare(*this, other) < 0; }
  bool operator<=(const Decimal& other) const { return compare(*this, other) <= 0; }
  bool operator>(const Decimal& other) const { return compare(*this, other) > 0; }
  bool operator>=(const Decimal& other) const { return compare(*this, other) >= 0; }

 private:
  Decimal(int64_t digits, int scale) : digits_(digits), scale_(scale) {}

  int64_t digits_ = 0;
  int scale_ = 0;  // 0 to 18; trailing zeros removed
};

}  // namespace lockstep
