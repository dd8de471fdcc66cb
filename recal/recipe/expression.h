#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/rational.h"

namespace lockstep::recal {

/// Reason why an expression has no value.
struct ExpressionFault {
  size_t at = 0;  ///< byte offset in the text, from 0
  std::string message;
};

/// Returns the value of a variable, or throws ExpressionFault with any `at`.
using ValueOfName = std::function<Rational(std::string_view name)>;

/// True if a scalar of a recipe must be evaluated, that is, begins with `eval(`.
bool is_expression(std::string_view text);

/// Returns the name in `eval(NAME)`, which refers to a variable of any type, not only a number.
/// Returns nullopt for any other text.
std::optional<std::string_view> bare_name(std::string_view text);

/// Returns the exact value of `eval(SUM)`:
///
///   SUM     = PRODUCT { (+|-) PRODUCT }
///   PRODUCT = FACTOR { (*|/) FACTOR }
///   FACTOR  = number | name | -FACTOR | "(" SUM ")"
///
/// number: as in Decimal::parse(), without a sign. name: letters, digits and _, not beginning with
/// a digit. At most 1000 characters and 64 nested brackets. Throws ExpressionFault.
Rational evaluate(std::string_view text, const ValueOfName& value_of);

}  // namespace lockstep::recal
