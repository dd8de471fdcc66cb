#include "recal/recipe/recipe_variables.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep::recal {
namespace expression_test {

/// num_epochs is 10, init_lr is 0.1; other names are unknown.
Rational value_of(std::string_view name) {
  if (name == "num_epochs") return Rational(10);
  if (name == "init_lr") return Rational::parse("0.1").value();
  throw ExpressionFault{0, "unknown"};
}

/// The value of `sum` as text, or `character: message`, characters counted from 0 in `sum`.
std::string result(const std::string& sum) {
  try {
    return evaluate("eval(" + sum + ")", value_of).text();
  } catch (const ExpressionFault& fault) {
    return fmt::format("{}: {}", static_cast<int>(fault.at) - 5, fault.message);
  }
}

std::string at(int character, const std::string& message) {
  return fmt::format("{}: {}", character, message);
}

TEST(Expression, KnowsWhatIsOne) {
  EXPECT_TRUE(is_expression("eval(1)"));
  EXPECT_TRUE(is_expression("eval("));
  EXPECT_FALSE(is_expression("eval"));
  EXPECT_FALSE(is_expression("evaluate(1)"));
  EXPECT_FALSE(is_expression(""));
}

TEST(Expression, Arithmetic) {
  EXPECT_EQ(result("1"), "1");
  EXPECT_EQ(result(" 1.5e1 "), "15");
  EXPECT_EQ(result("num_epochs * 0.5 - 1"), "4");
  EXPECT_EQ(result("num_epochs*init_lr"), "1");
  EXPECT_EQ(result("1 - 2 - 3"), "-4");
  EXPECT_EQ(result("12 / 4 / 3"), "1");
  EXPECT_EQ(result("2 + 3 * 4"), "14");
  EXPECT_EQ(result("(2 + 3) * 4"), "20");
  EXPECT_EQ(result("-2 * -3"), "6");
  EXPECT_EQ(result("--2"), "2");
  EXPECT_EQ(result("-(1 + 1) / 4"), "-0.5");
  EXPECT_EQ(result("0.1 + 0.2"), "0.3");
  EXPECT_EQ(result("1 / 3 * 3"), "1");
  EXPECT_EQ(result(".5 + 1"), "1.5");
  EXPECT_EQ(result("2 * .25"), "0.5");
}

TEST(Expression, WhatIsMissing) {
  const std::string operand = "a number, a variable or '(' is missing";
  const std::string bracket = "an operator or ')' is missing";
  EXPECT_EQ(result(""), at(0, operand));
  EXPECT_EQ(result("1 + "), at(4, operand));
  EXPECT_EQ(result("* 2"), at(0, operand));
  EXPECT_EQ(result("2 ** 3"), at(3, operand));
  EXPECT_EQ(result("()"), at(1, operand));
  EXPECT_EQ(result("1 2"), at(2, bracket));
  EXPECT_EQ(result("(1"), at(3, bracket));
  EXPECT_EQ(result("1)"), "2: nothing may follow the closing bracket");
  EXPECT_EQ(result("1) * (2"), "3: nothing may follow the closing bracket");
}

TEST(Expression, WhatItIsNot) {
  EXPECT_EQ(result("__import__('os')"), "0: unknown");
  EXPECT_EQ(result("min(1, 2)"), "0: unknown");
  EXPECT_EQ(result("1 % 2"), "2: an operator or ')' is missing");
  EXPECT_EQ(result("num_epochs.x"), "10: an operator or ')' is missing");
  EXPECT_EQ(result("'a'"), "0: a number, a variable or '(' is missing");
  EXPECT_EQ(result("."), "0: a number, a variable or '(' is missing");
  EXPECT_EQ(result("0x10"), "1: an operator or ')' is missing");
  EXPECT_EQ(result("2 * 1e99"), "4: this is not a decimal number of at most 18 digits");
  EXPECT_EQ(result("1e"), "0: this is not a decimal number of at most 18 digits");
}

TEST(Expression, UnknownNamesHaveTheirPlace) { EXPECT_EQ(result("1 + 2 * nope"), "8: unknown"); }

TEST(Expression, DivisionByZeroAndOverflow) {
  EXPECT_EQ(result("1 / 0"), "2: this divides by zero");
  EXPECT_EQ(result("1 / (num_epochs - 10)"), "2: this divides by zero");
  EXPECT_EQ(result("0 / 5"), "0");
  const std::string large = "the exact result is too large or has too many digits";
  EXPECT_EQ(result("1e17 * 1e17 * 1000"), at(12, large));
  EXPECT_EQ(result("1e-18 * 1e-18 / 10"), at(14, large));
}

TEST(Expression, IsShortAndFlat) {
  EXPECT_EQ(result(fmt::format("{:(>60}1{:)>60}", "", "")), "1");
  EXPECT_EQ(result(std::string(100, '(')),
            "64: there are more than 64 brackets or signs inside each other");
  EXPECT_EQ(result(std::string(100, '-')),
            "64: there are more than 64 brackets or signs inside each other");
  std::string many = "1";
  for (int i = 0; i < 497; ++i) many += "+1";
  EXPECT_EQ(result(many.substr(0, 993)), "497");
  EXPECT_EQ(result(many), "-5: an expression may have at most 1000 characters");
}

}  // namespace expression_test
}  // namespace lockstep::recal
