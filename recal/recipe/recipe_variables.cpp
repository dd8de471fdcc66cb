#include "recal/recipe/recipe_variables.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/text.h"

// Variables of a recipe, and the evaluation of expressions.
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
    if (next() != '\0') refuse("nothing may follow the closing bracket");
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
    if (!value) refuse_at(begin, "this is not a decimal number of at most 18 digits");
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

// Evaluation is depth first: a variable's own expressions are replaced before its value is used. A
// chain of names being evaluated detects cycles. Values are exact fractions (Rational); the tree
// gets their decimal text.

constexpr size_t kMaxChain = 64;
constexpr size_t kMaxVariablesShown = 20;

/// Thrown if the failure already has a fault at another place.
struct AlreadyFaulty {};

std::pair<int, int> mark_of(const YAML::Node& node) {
  return {node.Mark().line, node.Mark().column};
}

std::string kind_of(const YAML::Node& node) {
  if (node.IsScalar()) return "the string '" + node.Scalar().substr(0, 40) + "'";
  return node.IsSequence() ? "a list" : node.IsMap() ? "a map" : "nothing";
}

/// Number of scalars of a list or map, including nested ones.
size_t num_scalars(const YAML::Node& node) {
  size_t num = 1;
  if (node.IsSequence()) num += node.size();
  if (node.IsMap())
    for (const auto& pair : node) num += 1 + (pair.second.IsSequence() ? pair.second.size() : 0);
  return num;
}

bool holds_scalars(const YAML::Node& list) {
  return std::all_of(list.begin(), list.end(),
                     [](const YAML::Node& item) { return item.IsScalar() || item.IsNull(); });
}

/// True for a list of scalars, or a map of scalars and such lists.
bool is_flat(const YAML::Node& node) {
  if (node.IsSequence()) return holds_scalars(node);
  return std::all_of(node.begin(), node.end(), [](const auto& pair) {
    return !pair.second.IsMap() && (!pair.second.IsSequence() || holds_scalars(pair.second));
  });
}

}  // namespace

bool is_expression(std::string_view text) { return text.substr(0, kPrefix.size()) == kPrefix; }

std::optional<std::string_view> bare_name(std::string_view text) {
  if (!is_expression(text) || !text.ends_with(')')) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  text.remove_suffix(1);
  text = trimmed(text);
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

void RecipeVariables::add(const std::string& name, const YAML::Node& value) {
  index_.try_emplace(name, values_.size());
  names_.push_back(name);
  values_.push_back(value);
}

void RecipeVariables::add_over(const std::string& name, const YAML::Node& value) {
  if (index_.contains(name)) {
    values_[index_.at(name)].reset(value);
  } else {
    add(name, value);
  }
}

void RecipeVariables::substitute_in_variables() {
  for (size_t i = 0; i < names_.size(); ++i) {
    // The variable counts as being evaluated, so that a reference to itself is found.
    under_way_ = {names_[i]};
    substitute(values_[i]);
  }
  under_way_.clear();
}

void RecipeVariables::substitute(const YAML::Node& node) {
  // The list of faults has a limit; more evaluation would add nothing.
  if (faults_.full()) return;
  if (node.IsScalar()) replace(node);
  if (node.IsSequence())
    for (const YAML::Node& item : node) substitute(item);
  if (node.IsMap())
    for (const auto& pair : node) substitute(pair.second);
}

void RecipeVariables::replace(const YAML::Node& scalar) {
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the node's own text changes below
  const std::string text = scalar.Scalar();
  if (!is_expression(text) || failed_.contains(mark_of(scalar))) return;
  try {
    const std::optional<std::string_view> bare = bare_name(text);
    if (bare && replace_by_variable(scalar, *bare)) return;
    const Rational value = evaluate(text, [&](std::string_view name) { return value_of(name); });
    note(scalar, value.text());
    YAML::Node same = scalar;  // nodes are handles: this assignment changes the tree
    same = value.text();
    // The text may have fewer digits than the value; later expressions must use the exact one.
    exact_[mark_of(scalar)] = value;
    return;
  } catch (const ExpressionFault& fault) {
    faults_.add(document_.fault_inside(
        scalar, fault.at,
        fmt::format("'{}', character {}: {}", text.substr(0, 100), fault.at + 1, fault.message)));
  } catch (const AlreadyFaulty&) {
  }
  failed_.insert(mark_of(scalar));
}

void RecipeVariables::note(const YAML::Node& scalar, const std::string& value) {
  std::string& told = (*notes_)[mark_of(scalar)];
  if (told.empty()) {
    told = scalar.Scalar() + " = " + value;
  } else if (!told.ends_with(" " + value)) {
    told += ", in another stage " + value;
  }
  document_.set_note(scalar, told);
}

bool RecipeVariables::replace_by_variable(const YAML::Node& scalar, std::string_view name) {
  const auto found = index_.find(name);
  if (found == index_.end() || is_under_way(name)) return false;  // evaluate() reports it
  const YAML::Node value = evaluated(name, found->second);
  // Numbers go through evaluate(), which keeps them exact.
  if (value.IsNull() || (value.IsScalar() && number_of(value))) return false;
  YAML::Node same = scalar;  // nodes are handles: this assignment changes the tree
  if (value.IsScalar()) {
    note(scalar, value.Scalar());
    same = value.Scalar();
    return true;
  }
  // Lists within lists could grow exponentially by references (a "billion laughs" text).
  *num_nodes_ += num_scalars(value);
  if (*num_nodes_ > kMaxNodes)
    throw ExpressionFault{0, "the lists inserted by eval() contain more than 100,000 entries"};
  if (!is_flat(value))
    throw ExpressionFault{
        0, fmt::format("'{}' contains lists of lists, which eval() does not support", name)};
  same = value;
  return true;
}

YAML::Node RecipeVariables::evaluated(std::string_view name, size_t index) {
  const YAML::Node node = values_[index];
  if (under_way_.size() >= kMaxChain)
    throw ExpressionFault{0, "more than 64 variables depend on each other in a row"};
  under_way_.emplace_back(name);
  substitute(node);
  under_way_.pop_back();
  return node;
}

bool RecipeVariables::is_under_way(std::string_view name) const {
  return std::find(under_way_.begin(), under_way_.end(), name) != under_way_.end();
}

std::optional<Rational> RecipeVariables::number_of(const YAML::Node& scalar) const {
  if (is_expression(scalar.Scalar())) throw AlreadyFaulty{};  // its evaluation failed
  const auto exact = exact_.find(mark_of(scalar));
  return exact == exact_.end() ? Rational::parse(scalar.Scalar()) : exact->second;
}

Rational RecipeVariables::value_of(std::string_view name) {
  const auto found = index_.find(name);
  if (found == index_.end()) throw ExpressionFault{0, unknown_message(name)};
  if (is_under_way(name))
    throw ExpressionFault{0, fmt::format("'{}' depends on itself: {} -> {}", name,
                                         fmt::join(under_way_, " -> "), name)};
  const YAML::Node node = evaluated(name, found->second);
  if (node.IsScalar())
    if (const std::optional<Rational> value = number_of(node)) return *value;
  throw ExpressionFault{0, fmt::format("'{}' is {}, not a number of at most 18 digits; only a sole "
                                       "eval({}) may return something else",
                                       name, kind_of(node), name)};
}

std::string RecipeVariables::unknown_message(std::string_view name) const {
  if (names_.empty())
    return fmt::format(
        "unknown variable '{}': a recipe's variables are its top-level numbers, and this recipe "
        "has none",
        name);
  std::string hint = did_you_mean(name, names_);
  if (hint.empty()) {
    const size_t shown = std::min(names_.size(), kMaxVariablesShown);
    hint = fmt::format(
        "; available: {}{}",
        fmt::join(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        shown < names_.size() ? ", ..." : "");
  }
  return fmt::format("unknown variable '{}'{}", name, hint);
}

bool RecipeVariables::follows_from_failure(const Fault& fault) const {
  return failed_.contains({fault.mark_line, fault.mark_column});
}

}  // namespace lockstep::recal
