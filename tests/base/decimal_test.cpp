#include "base/exact_numbers.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep {
namespace decimal_test {

Decimal decimal(std::string_view text) {
  const std::optional<Decimal> value = Decimal::parse(text);
  EXPECT_TRUE(value.has_value()) << text;
  return value.value_or(Decimal());
}

TEST(Decimal, ReadsWhatPeopleWrite) {
  EXPECT_EQ(decimal("2.5").text(), "2.5");
  EXPECT_EQ(decimal("10.0").text(), "10");
  EXPECT_EQ(decimal("5.").text(), "5");
  EXPECT_EQ(decimal("1e3").text(), "1000");
  EXPECT_EQ(decimal("25e-2").text(), "0.25");
  EXPECT_EQ(decimal("-0.05").text(), "-0.05");
  EXPECT_EQ(decimal("007").text(), "7");
  EXPECT_EQ(decimal("0.000").text(), "0");
  EXPECT_EQ(decimal(".5").text(), "0.5");
  EXPECT_EQ(decimal("-.001").text(), "-0.001");
  EXPECT_EQ(decimal("5.").text(), "5");
  EXPECT_EQ(decimal(".5e1").text(), "5");
}

TEST(Decimal, SumsAreExact) {
  EXPECT_EQ(decimal("0.1").plus(decimal("0.2"))->text(), "0.3");
  EXPECT_EQ(decimal("2.5").plus(decimal("7.5"))->text(), "10");
  EXPECT_EQ(decimal("-0.5").plus(decimal("0.5"))->text(), "0");
  EXPECT_EQ(decimal("100000").plus(decimal("0.000001"))->text(), "100000.000001");
  EXPECT_FALSE(decimal("999999999999999999").plus(decimal("1")));
  EXPECT_FALSE(decimal("1000000").plus(decimal("0.0000000000001")));  // 20 digits
}

TEST(Decimal, RefusesWhatIsNoDecimal) {
  for (const char* text : {"", ".", "-", "1.2.3", "0x10", "1_000", "5%", "0,5", "-.", "..5", ".e5",
                           "1e", "e5", "1e400", ".inf", ".nan", "1234567890123456789", " 1", "1 "})
    EXPECT_FALSE(Decimal::parse(text).has_value()) << text;
}

TEST(Decimal, RoundsUpExactlyWhereDoublesDoNot) {
  EXPECT_EQ(decimal("1.1").ceil_times(100), 110);  // as doubles: 111
  EXPECT_EQ(decimal("2.2").ceil_times(100), 220);
  EXPECT_EQ(decimal("8.3").ceil_times(100), 830);
  EXPECT_EQ(decimal("2.5").ceil_times(7), 18);
  EXPECT_EQ(decimal("-0.5").ceil_times(3), -1);
}

TEST(Decimal, EveryTenthAgreesWithWholeNumbers) {
  for (int64_t tenths = 0; tenths < 400; ++tenths) {
    const Decimal value = decimal(std::to_string(tenths / 10) + "." + std::to_string(tenths % 10));
    for (const int64_t factor : {7, 10, 54, 100, 469, 1000})
      EXPECT_EQ(value.ceil_times(factor), (tenths * factor + 9) / 10)
          << tenths << " tenths of " << factor;
  }
}

TEST(Decimal, PeriodsDoNotAddUpRounding) {
  const Decimal start = decimal("0"), period = decimal("0.1");
  for (int64_t k = 0; k <= 50; ++k) EXPECT_EQ(start.ceil_times(k, period, 10), k);
  EXPECT_EQ(start.ceil_times(3, decimal("0.5"), 7), 11);
}

TEST(Decimal, OverflowIsAnErrorNotAStep) {
  EXPECT_THROW((void)decimal("999999999999999999").ceil_times(INT64_MAX), Error);
}

TEST(Decimal, ComparesByValue) {
  EXPECT_EQ(decimal("1.50"), decimal("1.5"));
  EXPECT_LT(decimal("0.05"), decimal("0.5"));
  EXPECT_GT(decimal("10"), decimal("9.999"));
}

}  // namespace decimal_test
}  // namespace lockstep
