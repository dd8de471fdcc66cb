#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/exact_numbers.h"
#include "base/yaml/yaml_document.h"

/// Variables of a recipe, and the exact evaluation of `eval(...)`.
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

/// Variables of a recipe, and the evaluation of `eval(EXPRESSION)` (evaluate). A bare name, as in
/// `eval(mask_type)`, is replaced by the variable itself. It may be a text, a list of scalars or a
/// map of these, not only a number.
///
/// Each stage uses a copy, since it may have its own variables. Values are written into the
/// document's tree, so that later readers find numbers. The document gets a note for each value, so
/// that faults also show the expression.
class RecipeVariables {
 public:
  /// References both arguments, which must outlive this object.
  RecipeVariables(YamlDocument* document, Diagnostics* faults)
      : document_(*document), faults_(*faults) {}

  /// Adds a variable. Its value may be eval(...) of other variables, in any order. Add all
  /// variables before the first call of substitute().
  void add(const std::string& name, const YAML::Node& value);
  /// Adds a variable, replacing one of the same name.
  void add_over(const std::string& name, const YAML::Node& value);

  /// Limit of the nodes that eval(NAME) of lists may insert; each use counts.
  static constexpr size_t kMaxNodes = 100'000;

  /// Replaces every eval(...) in `node` and below it by its value. If evaluation fails, adds a
  /// fault and leaves the text unchanged.
  void substitute(const YAML::Node& node);
  /// Replaces every eval(...) in the variables themselves.
  void substitute_in_variables();

  /// True if `fault` is at the place of an eval(...) that failed, so that it is a consequence.
  bool follows_from_failure(const Fault& fault) const;

 private:
  using Mark = std::pair<int, int>;  // line and column, from 0; aliases share their anchor's

  void replace(const YAML::Node& scalar);
  /// Makes faults at the scalar show its expression's value, in each stage with another value.
  void note(const YAML::Node& scalar, const std::string& value);
  /// Replaces the scalar by the variable of this name, if that is not a number. Returns false for a
  /// number or an unknown name.
  bool replace_by_variable(const YAML::Node& scalar, std::string_view name);
  Rational value_of(std::string_view name);
  /// Returns the variable's node, with all eval(...) in it replaced.
  YAML::Node evaluated(std::string_view name, size_t index);
  bool is_under_way(std::string_view name) const;
  std::string unknown_message(std::string_view name) const;
  /// Returns the number in a variable's scalar, or nullopt if it is not a number.
  std::optional<Rational> number_of(const YAML::Node& scalar) const;

  YamlDocument& document_;
  Diagnostics& faults_;
  std::vector<std::string> names_;                    // names of the variables, in the order added
  std::vector<YAML::Node> values_;                    // their values
  std::map<std::string, size_t, std::less<>> index_;  // index of a name in names_ and values_
  std::vector<std::string> under_way_;                // names being evaluated, outermost first
  std::map<Mark, Rational> exact_;                    // exact values; texts may be rounded
  std::set<Mark> failed_;
  /// Nodes inserted for eval(NAME) by this object and its copies.
  std::shared_ptr<size_t> num_nodes_ = std::make_shared<size_t>(0);
  /// Texts of note(), shared with the copies.
  std::shared_ptr<std::map<Mark, std::string>> notes_ =
      std::make_shared<std::map<Mark, std::string>>();
};

}  // namespace lockstep::recal
