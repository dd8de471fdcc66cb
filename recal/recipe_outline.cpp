#include "recal/recipe_outline.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/yaml_fields.h"

namespace lockstep::recal {
namespace {

constexpr std::string_view kListEnding = "modifiers";
constexpr int64_t kMajorVersion = 1;

/// The three numbers of 1.0.0, or nothing.
std::optional<std::vector<int64_t>> parse_version(std::string_view text) {
  std::vector<int64_t> numbers;
  while (numbers.size() < 3) {
    const size_t dot = numbers.size() < 2 ? text.find('.') : text.size();
    if (dot == std::string_view::npos || dot == 0) return std::nullopt;
    const std::string_view part = text.substr(0, dot);
    if (!std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return std::nullopt;
    const std::optional<int64_t> number = parse_integer(part);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    text.remove_prefix(std::min(text.size(), dot + 1));
  }
  return numbers;
}

void read_version(YamlFields* in, bool required) {
  std::string version;
  if (required) in->require("version");
  if (!in->read("version", &version, "version of the recipe language, 1.0.0")) return;
  const auto numbers = parse_version(version);
  if (!numbers) {
    in->fault("version",
              fmt::format("'version' must be three numbers such as 1.0.0, not '{}'", version));
  } else if (numbers->front() != kMajorVersion) {
    in->fault("version", fmt::format("'version' is {}; this program reads versions {}.x", version,
                                     kMajorVersion));
  }
}

bool is_list_of_scalars(const YAML::Node& node) {
  return node.IsSequence() && std::all_of(node.begin(), node.end(), [](const YAML::Node& item) {
           return item.IsScalar() && item.Tag().size() <= 1;
         });
}

/// Why an entry that is neither `version` nor a list of modifiers is refused; empty if it is not.
std::string refusal_of(const std::string& key, const YAML::Node& value) {
  const std::string hint = did_you_mean(key, {std::string(kListEnding)});
  if (!hint.empty()) return "unknown key '" + key + "'" + hint;
  if (value.IsScalar() || value.IsNull() || is_list_of_scalars(value)) return "";
  return fmt::format(
      "unknown key '{}': the top level of a recipe holds 'version', variables (numbers and texts) "
      "and lists of modifiers, whose names end in 'modifiers'",
      key);
}

}  // namespace

bool names_modifiers(std::string_view key) {
  return key.size() >= kListEnding.size() &&
         key.substr(key.size() - kListEnding.size()) == kListEnding;
}

RecipeOutline read_outline(const YamlDocument& document, bool is_front_matter, Faults* faults) {
  RecipeOutline outline;
  std::vector<std::pair<YAML::Node, std::string>> refused;
  for (const auto& pair : document.root()) {
    if (refused.size() == Faults::kMaxKept) break;
    if (!pair.first.IsScalar()) continue;  // already a fault of the document
    const std::string& key = pair.first.Scalar();
    if (key == "version") continue;
    if (names_modifiers(key)) {
      outline.lists.push_back({key, pair.second, pair.first});
    } else if (std::string refusal = refusal_of(key, pair.second); refusal.empty()) {
      outline.variables.push_back({key, pair.second, pair.first});
    } else {
      refused.emplace_back(pair.first, std::move(refusal));
    }
  }
  const bool is_classic = std::all_of(outline.lists.begin(), outline.lists.end(),
                                      [](const auto& list) { return list.name == kListEnding; });
  YamlFields in(document.root(), "", document, faults);
  read_version(&in, is_classic && !is_front_matter);
  if (outline.lists.empty()) in.require(kListEnding);
  for (const auto& [key, refusal] : refused) faults->add(document.fault_at(key, refusal));
  return outline;
}

RecipeOutline outline_of_list(const std::string& name, const YAML::Node& list,
                              const YamlDocument& document) {
  YAML::Node key = list;
  for (const auto& pair : document.root())
    if (pair.first.IsScalar() && pair.first.Scalar() == name) key.reset(pair.first);
  return {.lists = {{name, list, key}}, .variables = {}};
}

bool check_is_list(const RecipeOutline::Entry& entry, const YamlDocument& document,
                   Faults* faults) {
  if (entry.node.IsSequence()) return true;
  const YAML::Node& place = entry.node.IsNull() ? entry.key : entry.node;  // nothing is further on
  faults->add(document.fault_at(
      place,
      fmt::format("'{}' must be a list of items such as '- !EpochRangeModifier'", entry.name)));
  return false;
}

}  // namespace lockstep::recal
