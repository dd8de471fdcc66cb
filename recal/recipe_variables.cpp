#include "recal/recipe_variables.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/expression.h"

namespace lockstep::recal {
namespace {

constexpr size_t kMaxChain = 64;
constexpr size_t kMaxNamesShown = 20;

/// Thrown for what has its fault already, elsewhere.
struct AlreadyFaulty {};

std::pair<int, int> mark_of(const YAML::Node& node) {
  return {node.Mark().line, node.Mark().column};
}

std::string kind_of(const YAML::Node& node) {
  if (node.IsScalar()) return "the text '" + node.Scalar().substr(0, 40) + "'";
  return node.IsSequence() ? "a list" : node.IsMap() ? "a map" : "nothing";
}

}  // namespace

void RecipeVariables::add(const std::string& name, const YAML::Node& value) {
  index_.try_emplace(name, values_.size());
  names_.push_back(name);
  values_.push_back(value);
}

void RecipeVariables::substitute_in_variables() {
  for (size_t i = 0; i < names_.size(); ++i) {
    under_way_ = {names_[i]};
    substitute(values_[i]);
  }
  under_way_.clear();
}

void RecipeVariables::substitute(const YAML::Node& node) {
  if (faults_.full()) return;
  if (node.IsScalar()) replace(node);
  if (node.IsSequence())
    for (const YAML::Node& item : node) substitute(item);
  if (node.IsMap())
    for (const auto& pair : node) substitute(pair.second);
}

void RecipeVariables::replace(const YAML::Node& scalar) {
  const std::string text = scalar.Scalar();
  if (!is_expression(text) || failed_.contains(mark_of(scalar))) return;
  try {
    const Rational value = evaluate(text, [&](std::string_view name) { return value_of(name); });
    document_.set_note(scalar, fmt::format("{} = {}", text, value.text()));
    YAML::Node same = scalar;  // a handle: the node keeps its place
    same = value.text();
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

std::optional<Rational> RecipeVariables::number_of(const YAML::Node& scalar) const {
  if (is_expression(scalar.Scalar())) throw AlreadyFaulty{};  // else it would be replaced by now
  const auto exact = exact_.find(mark_of(scalar));
  return exact == exact_.end() ? Rational::parse(scalar.Scalar()) : exact->second;
}

Rational RecipeVariables::value_of(std::string_view name) {
  const auto found = index_.find(name);
  if (found == index_.end()) throw ExpressionFault{0, unknown_message(name)};
  if (std::find(under_way_.begin(), under_way_.end(), name) != under_way_.end())
    throw ExpressionFault{0, fmt::format("'{}' depends on itself: {} -> {}", name,
                                         fmt::join(under_way_, " -> "), name)};
  if (under_way_.size() >= kMaxChain)
    throw ExpressionFault{0, "more than 64 variables depend on each other in a row"};
  const YAML::Node& node = values_[found->second];
  if (node.IsScalar()) {
    under_way_.emplace_back(name);
    replace(node);
    under_way_.pop_back();
    if (const std::optional<Rational> value = number_of(node)) return *value;
  }
  throw ExpressionFault{
      0, fmt::format("'{}' is {}, not a number of at most 18 digits; what is no number can be "
                     "repeated with an anchor (&name) and aliases (*name)",
                     name, kind_of(node))};
}

std::string RecipeVariables::unknown_message(std::string_view name) const {
  if (names_.empty())
    return fmt::format(
        "there is no variable '{}': a recipe's variables are its top-level numbers, "
        "and here are none",
        name);
  std::string hint = did_you_mean(name, names_);
  if (hint.empty()) {
    const size_t shown = std::min(names_.size(), kMaxNamesShown);
    hint = fmt::format(
        "; there are {}{}",
        fmt::join(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        shown < names_.size() ? ", ..." : "");
  }
  return fmt::format("there is no variable '{}'{}", name, hint);
}

bool RecipeVariables::follows_from_failure(const Fault& fault) const {
  return failed_.contains({static_cast<int>(fault.line) - 1, static_cast<int>(fault.column) - 1});
}

}  // namespace lockstep::recal
