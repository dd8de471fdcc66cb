#include "recal/recipe.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/digest.h"
#include "base/yaml_fields.h"
#include "recal/modifier_table.h"

namespace lockstep::recal {
namespace {

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

void read_version(YamlFields* in) {
  std::string version;
  in->require("version");
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

/// The value of `modifiers`, or its key where the value is nothing: YAML puts nothing on a later
/// line.
YAML::Node place_of_list(const YAML::Node& root, const YAML::Node& list) {
  if (!list.IsNull()) return list;
  for (const auto& pair : root)
    if (pair.first.IsScalar() && pair.first.Scalar() == "modifiers") return pair.first;
  return list;
}

}  // namespace

Recipe Recipe::load(const std::string& path, Faults* faults) {
  return from_document(YamlDocument::load(path, faults), faults);
}

Recipe Recipe::parse(const std::string& file, const std::string& text, Faults* faults) {
  return from_document(YamlDocument::parse(file, text, faults), faults);
}

Recipe Recipe::from_document(const YamlDocument& document, Faults* faults) {
  Recipe recipe;
  if (document.root().IsNull()) return recipe;  // its fault is already there
  YamlFields in(document.root(), "", document, faults);
  if (!document.root().IsMap()) return recipe;
  read_version(&in);
  in.require("modifiers");
  const YAML::Node list =
      in.take("modifiers", "list of modifiers", "what changes while training runs");
  if (list.IsDefined()) recipe = from_modifiers(list, document, faults);
  in.done();
  return recipe;
}

Recipe Recipe::from_modifiers(const YAML::Node& list, const YamlDocument& document,
                              Faults* faults) {
  Recipe recipe;
  recipe.file_ = document.file();
  recipe.source_sha256_ = sha256_hex(document.text());
  if (!list.IsSequence()) {
    faults->add(
        document.fault_at(place_of_list(document.root(), list),
                          "'modifiers' must be a list of items such as '- !EpochRangeModifier'"));
    return recipe;
  }
  for (const YAML::Node& item : list)
    if (std::shared_ptr<const Modifier> modifier = read_modifier(item, document, faults))
      recipe.modifiers_.push_back(std::move(modifier));
  return recipe;
}

}  // namespace lockstep::recal
