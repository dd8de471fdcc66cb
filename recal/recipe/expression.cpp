#include "recal/recipe/expression.h"

#include <optional>

namespace lockstep::recal {
// A recursive descent parser that evaluates as it reads. All arithmetic is on exact fractions: an
// epoch such as 0.1 * 3 must convert to the same step as the decimal 0.3.
namespace {

constexpr std::string_view kPrefix = "eval(";
constexpr size_t kMaxCharacters = 1000;
constexpr int kMaxDepth = 64;

// Own tests of characters: those of <cctype> depend on the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Parser and evaluator: one pass over the text, one function per grammar rule.
class Evaluator {
 public:
  Evaluator(std::string_view text, const ValueOfName& value_of)
      : text_(text), value_of_(value_of), at_(kPrefix.size()) {}

  Rational whole() {
    const Rational value = sum();
    if (!take(')')) refuse("an operator or ')' is missing");
    if (next() != '\0') refuse("nothing may stand behind the closing bracket");
    return value;
  }

 private:
  Rational sum() {
    Rational value = product();
    while (true) {
      const size_t sign_at = at_after_space();
      if (take('+')) {
        value = kept(add(value, product()), sign_at);
      } else if (take('-')) {
        value = kept(subtract(value, product()), sign_at);
      } else {
        return value;
      }
    }
  }

  Rational product() {
    Rational value = factor();
    while (true) {
      const size_t sign_at = at_after_space();
      if (take('*')) {
        value = kept(multiply(value, factor()), sign_at);
      } else if (take('/')) {
        const Rational divisor = factor();
        if (divisor.is_zero()) refuse_at(sign_at, "this divides by zero");
        value = kept(divide(value, divisor), sign_at);
      } else {
        return value;
      }
    }
  }

  // The limit keeps a hostile text from exhausting the stack.
  Rational factor() {
    if (++depth_ > kMaxDepth) refuse("there are more than 64 brackets or signs inside each other");
    const Rational value = take('-') ? factor().negated() : take('(') ? bracket() : operand();
    --depth_;
    return value;
  }

  Rational bracket() {
    const Rational value = sum();
    if (!take(')')) refuse("an operator or ')' is missing");
    return value;
  }

  Rational operand() {
    const char c = next();
    // A number may begin with its decimal point: .5
    const bool is_fraction = c == '.' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]);
    if (is_digit(c) || is_fraction) return number();
    if (is_letter(c)) return variable();
    refuse("a number, a variable or '(' is missing");
  }

  Rational number() {
    const size_t begin = at_;
    const auto take_digits = [&] {
      while (is_digit(here())) ++at_;
    };
    take_digits();
    if (here() == '.') ++at_;
    take_digits();
    if (here() == 'e' || here() == 'E') {
      ++at_;
      if (here() == '+' || here() == '-') ++at_;
      take_digits();
    }
    const std::string_view digits = text_.substr(begin, at_ - begin);
    const std::optional<Rational> value = Rational::parse(digits);
    if (!value) refuse_at(begin, "this is no decimal number of at most 18 digits");
    return *value;
  }

  Rational variable() {
    const size_t begin = at_;
    while (is_letter(here()) || is_digit(here())) ++at_;
    try {
      return value_of_(text_.substr(begin, at_ - begin));
    } catch (ExpressionFault& fault) {
      // The callback does not know the place in the text; it is filled in here.
      fault.at = begin;
      throw;
    }
  }

  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  size_t at_after_space() {
    while (is_space(here())) ++at_;
    return at_;
  }
  char next() {
    at_after_space();
    return here();
  }
  bool take(char wanted) {
    if (next() != wanted) return false;
    ++at_;
    return true;
  }

  /// Returns the value of an operation, or refuses it at the operator if it is not exact.
  static Rational kept(const std::optional<Rational>& value, size_t at) {
    if (!value) refuse_at(at, "the exact result is too large or has too many digits");
    return *value;
  }
  [[noreturn]] void refuse(std::string message) { refuse_at(at_after_space(), std::move(message)); }
  [[noreturn]] static void refuse_at(size_t at, std::string message) {
    throw ExpressionFault{at, std::move(message)};
  }

  std::string_view text_;
  const ValueOfName& value_of_;
  size_t at_;
  int depth_ = 0;
};

}  // namespace

bool is_expression(std::string_view text) { return text.substr(0, kPrefix.size()) == kPrefix; }

std::optional<std::string_view> bare_name(std::string_view text) {
  if (!is_expression(text) || !text.ends_with(')')) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.empty() || !is_letter(text.front())) return std::nullopt;
  for (const char c : text)
    if (!is_letter(c) && !is_digit(c)) return std::nullopt;
  return text;
}

Rational evaluate(std::string_view text, const ValueOfName& value_of) {
  if (text.size() > kMaxCharacters)
    throw ExpressionFault{0, "an expression may have at most 1000 characters"};
  return Evaluator(text, value_of).whole();
}

}  // namespace lockstep::recal
