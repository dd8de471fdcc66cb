#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/rational.h"

namespace lockstep::recal {

/// Why an expression has no value.
struct ExpressionFault {
  size_t at = 0;  ///< byte of the text, from 0
  std::string message;
};

/// The value of a variable, or an ExpressionFault thrown with any `at`.
using ValueOfName = std::function<Rational(std::string_view name)>;

/// True if a recipe's scalar is to be evaluated: it begins with `eval(`.
bool is_expression(std::string_view text);

/// The name in `eval(NAME)`: a variable as it is, not only a number. Nothing if the text is
/// anything else.
std::optional<std::string_view> bare_name(std::string_view text);

/// The value of `eval(SUM)`, exactly:
///
///   SUM     = PRODUCT { (+|-) PRODUCT }
///   PRODUCT = FACTOR { (*|/) FACTOR }
///   FACTOR  = number | name | -FACTOR | "(" SUM ")"
///
/// number: as Decimal::parse() without its sign; name: letters, digits and _, no digit first. At
/// most 1000 characters and 64 levels of brackets. Throws ExpressionFault.
Rational evaluate(std::string_view text, const ValueOfName& value_of);

}  // namespace lockstep::recal
