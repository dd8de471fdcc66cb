// The names of warm starts. Rules are checked when the run file is read, so a bad pattern is
// reported there.
#include "checkpoint/rename_rules.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <re2/re2.h>
#include <yaml-cpp/yaml.h>

#include "base/tensors/name_scopes.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kRegexStart = "re:";
// \0 to \9: RE2 rewrites name groups by one digit.
constexpr int kMostGroups = 10;

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// Returns the rules as written; nullopt if the node is neither a list nor a map of rules.
std::optional<Pairs> pairs_of(const YAML::Node& node) {
  Pairs pairs;
  if (node.IsMap()) {
    for (const auto& pair : node) {
      if (!pair.first.IsScalar() || !pair.second.IsScalar()) return std::nullopt;
      pairs.emplace_back(pair.first.Scalar(), pair.second.Scalar());
    }
    // In a map the order of keys means nothing, so the longest `from` has priority.
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
    return pairs;
  }
  if (!node.IsSequence()) return std::nullopt;
  for (const YAML::Node& rule : node) {
    if (!rule.IsMap() || rule.size() != 2 || !rule["from"] || !rule["to"] ||
        !rule["from"].IsScalar() || !rule["to"].IsScalar())
      return std::nullopt;
    pairs.emplace_back(rule["from"].Scalar(), rule["to"].Scalar());
  }
  return pairs;
}

constexpr std::string_view kModelPart = "model";

/// Returns "/" + the rest of a name below `model`, for a rule whose `from` is exactly `model`.
std::optional<std::string> behind_model(const std::string& name) {
  const bool is_part = name.starts_with("model/") || name.starts_with("model.");
  return is_part ? std::optional("/" + plain_name(name)) : std::nullopt;
}

/// Removes the leading slash or dot that a removed part leaves.
std::string cleaned(const std::string& name) {
  const size_t begin = name.find_first_not_of("/.");
  return plain_name(begin == std::string::npos ? "" : name.substr(begin));
}

}  // namespace

RenameRules::Rule RenameRules::make_rule(const std::string& from, const std::string& to,
                                         std::string* fault) {
  Rule rule{from, to, nullptr};
  if (!from.starts_with(kRegexStart)) {
    const std::string trimmed = from.substr(0, from.find_last_not_of("./") + 1);
    rule.from = plain_name(trimmed);
    rule.is_model_alone = trimmed == kModelPart;
    if (rule.from.empty()) *fault = "has an empty name as 'from'";
    return rule;
  }
  re2::RE2::Options quiet;
  quiet.set_log_errors(false);
  rule.pattern = std::make_shared<const re2::RE2>(from.substr(kRegexStart.size()), quiet);
  std::string why;
  if (!rule.pattern->ok())
    *fault = fmt::format("has '{}', which is no regular expression (RE2): {}", from,
                         rule.pattern->error());
  else if (!rule.pattern->CheckRewriteString(to, &why))
    *fault = fmt::format("has '{}', which cannot follow '{}': {}", to, from, why);
  return rule;
}

RenameRules RenameRules::read(ConfigReader* in, std::string_view key, std::string_view help) {
  RenameRules rules;
  const YAML::Node node = in->take(key, "list of {from, to}", help);
  if (!node.IsDefined()) return rules;
  const std::optional<Pairs> pairs = pairs_of(node);
  if (!pairs)
    in->fault(key, fmt::format("'{}.{}' must be a list of {{from: NAME, to: NAME}}, or a map from "
                               "names there to names here",
                               in->path(), key));
  for (const auto& [from, to] : pairs.value_or(Pairs{})) {
    std::string fault;
    rules.rules_.push_back(make_rule(from, to, &fault));
    if (!fault.empty()) in->fault(key, fmt::format("'{}.{}' {}", in->path(), key, fault));
  }
  return rules;
}

std::optional<std::string> RenameRules::renamed_by(const Rule& rule, const std::string& name) {
  if (!rule.pattern) {
    const std::string plain = plain_name(name);
    if (plain == rule.from || plain.starts_with(rule.from + "/"))
      return rule.to + plain.substr(rule.from.size());
    const auto behind = rule.is_model_alone ? behind_model(name) : std::nullopt;
    return behind ? std::optional(rule.to + *behind) : std::nullopt;
  }
  re2::StringPiece groups[kMostGroups];
  if (!rule.pattern->Match(name, 0, name.size(), re2::RE2::ANCHOR_START, groups, kMostGroups))
    return std::nullopt;
  std::string start;
  if (!rule.pattern->Rewrite(&start, rule.to, groups, kMostGroups)) return std::nullopt;
  return start + name.substr(groups[0].size());
}

std::optional<RenameRules::Renamed> RenameRules::apply(const std::string& name) const {
  for (size_t i = 0; i < rules_.size(); ++i)
    if (const auto renamed = renamed_by(rules_[i], name)) return Renamed{i, cleaned(*renamed)};
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
