#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rational.h"
#include "base/yaml_document.h"

namespace lockstep::recal {

/// The variables of a recipe, and what `eval(EXPRESSION)` makes of them (recal/expression.h).
///
/// Values are put into the document's tree, so that whoever reads it afterwards finds numbers; the
/// document gets a note for each, so that faults name the expression as well.
class RecipeVariables {
 public:
  /// Both must outlive this object.
  RecipeVariables(YamlDocument* document, Faults* faults)
      : document_(*document), faults_(*faults) {}

  /// A variable, whose value may itself be eval(...) of others, in any order. Add all before the
  /// first call of substitute().
  void add(const std::string& name, const YAML::Node& value);

  /// Replaces every eval(...) in `node` and below it by its value. What cannot be evaluated is a
  /// fault and stays as it is.
  void substitute(const YAML::Node& node);
  /// The same for the variables themselves.
  void substitute_in_variables();

  /// True if `fault` stands where an eval(...) has failed: it follows from that.
  bool follows_from_failure(const Fault& fault) const;

 private:
  using Mark = std::pair<int, int>;  // line and column from 0; aliases share their anchor's

  void replace(const YAML::Node& scalar);
  Rational value_of(std::string_view name);
  std::string unknown_message(std::string_view name) const;
  /// The number that a variable's scalar holds; nothing if it is none.
  std::optional<Rational> number_of(const YAML::Node& scalar) const;

  YamlDocument& document_;
  Faults& faults_;
  std::vector<std::string> names_;                    // of the variables, in the order added
  std::vector<YAML::Node> values_;                    // theirs
  std::map<std::string, size_t, std::less<>> index_;  // in names_ and values_
  std::vector<std::string> under_way_;                // names being evaluated, outermost first
  std::map<Mark, Rational> exact_;                    // what the scalars hold, perhaps cut
  std::set<Mark> failed_;
};

}  // namespace lockstep::recal
