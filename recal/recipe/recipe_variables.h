#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rational.h"
#include "base/yaml/yaml_document.h"

namespace lockstep::recal {

/// The variables of a recipe, and what `eval(EXPRESSION)` makes of them
/// (recal/recipe/expression.h). A variable's bare name, `eval(mask_type)`, stands for the variable
/// as it is: a text, a list of scalars or a map of such as well as a number.
///
/// Copies are for the stages of a recipe, each of which may have variables of its own. Values are
/// put into the document's tree, so that whoever reads it afterwards finds numbers; the
/// document gets a note for each, so that faults name the expression as well.
class RecipeVariables {
 public:
  /// Both must outlive this object.
  RecipeVariables(YamlDocument* document, Diagnostics* faults)
      : document_(*document), faults_(*faults) {}

  /// A variable, whose value may itself be eval(...) of others, in any order. Add all before the
  /// first call of substitute().
  void add(const std::string& name, const YAML::Node& value);
  /// The same, instead of one that has the name already.
  void add_over(const std::string& name, const YAML::Node& value);

  /// Nodes that eval(NAME) of lists may add: each use counts anew.
  static constexpr size_t kMaxNodes = 100'000;

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
  /// Lets faults at the scalar name the value of its expression, in each stage that has another.
  void note(const YAML::Node& scalar, const std::string& value);
  /// Puts the variable of this name in the scalar's place if it is no number; false if it is one,
  /// or if there is none.
  bool replace_by_variable(const YAML::Node& scalar, std::string_view name);
  Rational value_of(std::string_view name);
  /// The variable's node, with all eval(...) in it replaced.
  YAML::Node evaluated(std::string_view name, size_t index);
  bool is_under_way(std::string_view name) const;
  std::string unknown_message(std::string_view name) const;
  /// The number that a variable's scalar holds; nothing if it is none.
  std::optional<Rational> number_of(const YAML::Node& scalar) const;

  YamlDocument& document_;
  Diagnostics& faults_;
  std::vector<std::string> names_;                    // of the variables, in the order added
  std::vector<YAML::Node> values_;                    // theirs
  std::map<std::string, size_t, std::less<>> index_;  // in names_ and values_
  std::vector<std::string> under_way_;                // names being evaluated, outermost first
  std::map<Mark, Rational> exact_;                    // what the scalars hold, perhaps cut
  std::set<Mark> failed_;
  /// Put in the place of an eval(NAME) by this object and its copies.
  std::shared_ptr<size_t> num_nodes_ = std::make_shared<size_t>(0);
  /// What note() has told, also for the copies.
  std::shared_ptr<std::map<Mark, std::string>> notes_ =
      std::make_shared<std::map<Mark, std::string>>();
};

}  // namespace lockstep::recal
