// float64 numbers cover the bits 2^-1074 to 2^1023: 67 digits of 32 bits.
#include "base/tensors/superaccumulator.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr int kDigitBits = 32;
constexpr int kLeastExponent = -1074;  // exponent of the first digit's lowest bit
constexpr int kFractionBits = 52;
constexpr uint64_t kDigitMask = (uint64_t{1} << kDigitBits) - 1;
constexpr int kNumDigits = Superaccumulator::kNumCounters - 1;

}  // namespace

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
