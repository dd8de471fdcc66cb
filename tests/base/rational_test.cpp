#include "base/exact_numbers.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace lockstep {
namespace rational_test {

Rational number(const char* text) { return Rational::parse(text).value(); }
std::string quotient(const char* a, const char* b) {
  return divide(number(a), number(b)).value().text();
}

TEST(Rational, DecimalsComeBackAsTheyAre) {
  for (const char* text : {"0", "1", "-1", "2.5", "0.05", "-0.001", "123456789012345678",
                           "0.000000000000000001", "999999999999999999", "1.23456789012345678"})
    EXPECT_EQ(number(text).text(), text);
  EXPECT_EQ(number("1e3").text(), "1000");
  EXPECT_EQ(number("25.00").text(), "25");
  EXPECT_EQ(number("-0").text(), "0");
  EXPECT_FALSE(Rational::parse("1e400"));
  EXPECT_FALSE(Rational::parse("x"));
  EXPECT_FALSE(Rational::parse(""));
}

TEST(Rational, SumsOfDecimalsAreExact) {
  EXPECT_EQ(add(number("0.1"), number("0.2")).value().text(), "0.3");
  EXPECT_EQ(subtract(number("0.3"), number("0.1")).value().text(), "0.2");
  EXPECT_EQ(multiply(number("1.1"), number("100")).value().text(), "110");
  EXPECT_EQ(subtract(number("1"), number("1")).value().text(), "0");
  EXPECT_EQ(add(divide(number("1"), number("3")).value(), divide(number("2"), number("3")).value())
                .value()
                .text(),
            "1");
}

TEST(Rational, QuotientsAreExactWhereTheyEnd) {
  EXPECT_EQ(quotient("1", "4"), "0.25");
  EXPECT_EQ(quotient("-7", "8"), "-0.875");
  EXPECT_EQ(quotient("7", "-8"), "-0.875");
  EXPECT_EQ(quotient("-7", "-8"), "0.875");
  EXPECT_EQ(quotient("1", "262144"), "0.000003814697265625");  // 2^18: 18 places
}

TEST(Rational, OtherQuotientsAreCutNeverRoundedUp) {
  EXPECT_EQ(quotient("1", "3"), "0.333333333333333333");
  EXPECT_EQ(quotient("2", "3"), "0.666666666666666666");
  EXPECT_EQ(quotient("-20", "3"), "-6.66666666666666666");
  EXPECT_EQ(quotient("1", "300"), "0.003333333333333333");
  EXPECT_EQ(quotient("1", "30000"), "0.000033333333333333");
  EXPECT_EQ(quotient("1", "524288"), "0.000001907348632812");  // 2^19: 19 places
  EXPECT_EQ(quotient("1", "3000000"), "3.33333333333333e-7");
  EXPECT_EQ(quotient("1000000000000000", "7"), "142857142857142.857");
  EXPECT_EQ(quotient("100000000000000000", "7"), "14285714285714285.7");
  EXPECT_EQ(quotient("999999999999999999", "7"), "142857142857142857");
  EXPECT_EQ(quotient("99999999999999999", "3.3"), "30303030303030302.7");
}

TEST(Rational, WhatIsJustBelowStaysBelow) {
  // 1 - 10^-17 / 3 has 17 nines
  const Rational tiny = divide(number("1e-17"), number("3")).value();
  EXPECT_EQ(subtract(number("1"), tiny).value().text(), "0.999999999999999996");
  EXPECT_EQ(subtract(number("0.01"), tiny).value().text(), "0.009999999999999996");
  EXPECT_EQ(subtract(number("0.001"), tiny).value().text(), "0.000999999999999996");
}

TEST(Rational, EveryCutTextFromAMillionthUpIsADecimal) {
  for (const char* divisor : {"3", "7", "30", "300", "3000", "30000", "300000", "999983"}) {
    const std::optional<Decimal> read = Decimal::parse(quotient("1", divisor));
    ASSERT_TRUE(read) << "1 / " << divisor;
    EXPECT_NEAR(read->to_double() * std::atof(divisor), 1.0, 1e-11) << divisor;
    EXPECT_LE(read->to_double() * std::atof(divisor), 1.0 + 1e-15) << divisor;
  }
}

TEST(Rational, WhatIsTooLargeIsNothing) {
  const Rational root = multiply(number("1e17"), number("10")).value();
  const Rational value = multiply(root, root).value();  // 10^36, the largest
  EXPECT_EQ(value.text(), "1" + std::string(36, '0'));
  EXPECT_FALSE(multiply(value, number("2")));
  EXPECT_FALSE(multiply(value, value));
  EXPECT_FALSE(add(value, number("1")));
  EXPECT_TRUE(add(value, number("-1")));
  EXPECT_FALSE(subtract(number("-1"), value));
  EXPECT_TRUE(divide(number("1"), value));
  EXPECT_FALSE(divide(divide(number("1"), value).value(), number("2")));
}

}  // namespace rational_test
}  // namespace lockstep
