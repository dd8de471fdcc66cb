#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// An exact decimal number: digits / 10^scale. Epochs are written as decimals, and in binary
/// ceil(1.1 * 100) is 111. At most 18 significant digits, |exponent| <= 18.
class Decimal {
 public:
  Decimal() = default;
  explicit Decimal(int64_t whole) : digits_(whole) {}

  /// Grammar: [sign] (digits [. [digits]] | . digits) [(e|E) [sign] digits]. Nothing if the text is
  /// not of that form or too long.
  static std::optional<Decimal> parse(std::string_view text);

  /// ceil((this + count * period) * factor), exactly: the step at which update `count` of a period
  /// falls, with factor = steps per epoch.
  int64_t ceil_times(int64_t factor) const { return ceil_times(0, Decimal(), factor); }
  int64_t ceil_times(int64_t count, const Decimal& period, int64_t factor) const;

  /// this + other, exactly; nothing if that has more than 18 digits.
  std::optional<Decimal> plus(const Decimal& other) const;

  double to_double() const;
  /// Shortest text of the value: 2.5, 10, 0.05.
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
