#include "recal/modifier_table.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/constant_ks.h"
#include "recal/epoch_range.h"
#include "recal/gradual_ks.h"
#include "recal/learning_rate.h"
#include "recal/set_learning_rate.h"

namespace lockstep::recal {
namespace {

struct TableRow {
  std::string_view tag;
  std::unique_ptr<Modifier> (*read)(YamlFields* in, Place place);
};

constexpr std::array kTable = {
    TableRow{EpochRange::kTag, EpochRange::read},
    TableRow{ConstantKS::kTag, ConstantKS::read},
    TableRow{GradualKS::kTag, GradualKS::read},
    TableRow{SetLearningRate::kTag, SetLearningRate::read},
    TableRow{LearningRate::kTag, LearningRate::read},
};

/// Tags of the recipe language that this version does not have yet.
constexpr std::array<std::string_view, 3> kNotYet = {
    "QuantizationModifier", "TrainableParamsModifier", "SetWeightDecayModifier"};

std::vector<std::string> tags() {
  std::vector<std::string> names;
  for (const TableRow& row : kTable) names.emplace_back(row.tag);
  return names;
}

std::string tag_list() { return fmt::format("!{}", fmt::join(tags(), ", !")); }

/// yaml-cpp gives "?" or nothing to plain nodes and "!" to quoted texts.
bool has_tag(const std::string& tag) { return tag.size() > 1; }

const TableRow* find_row(std::string_view name) {
  const auto row =
      std::find_if(kTable.begin(), kTable.end(), [&](const TableRow& r) { return r.tag == name; });
  return row == kTable.end() ? nullptr : row;
}

std::string no_tag_message(const YAML::Node& item) {
  if (item.IsMap() && item.size() > 0 && item.begin()->first.IsScalar()) {
    const std::string& key = item.begin()->first.Scalar();
    if (find_row(key) != nullptr)
      return fmt::format("a modifier is named by a tag: write '- !{}' without a colon", key);
  }
  return "an item of 'modifiers' needs a tag that names it, such as !GradualKSModifier; there "
         "are " +
         tag_list();
}

std::string unknown_tag_message(const std::string& tag) {
  const std::string name = tag.front() == '!' ? tag.substr(1) : tag;
  if (std::find(kNotYet.begin(), kNotYet.end(), name) != kNotYet.end())
    return fmt::format("this version does not have !{} yet; it has {}", name, tag_list());
  const std::string shown = tag.front() == '!' ? tag : "'" + tag + "'";
  return fmt::format("unknown modifier {}{}; there are {}", shown, did_you_mean(name, tags()),
                     tag_list());
}

}  // namespace

std::unique_ptr<Modifier> read_modifier(const YAML::Node& item, const YamlDocument& document,
                                        Faults* faults) {
  const auto refuse = [&](std::string message) {
    faults->add(document.fault_at(item, std::move(message)));
    return nullptr;
  };
  const std::string tag = item.Tag();
  if (!has_tag(tag)) return refuse(no_tag_message(item));
  const TableRow* row = tag.front() == '!' ? find_row(tag.substr(1)) : nullptr;
  if (row == nullptr) return refuse(unknown_tag_message(tag));
  if (!item.IsMap())
    return refuse(
        fmt::format("{} has no keys: write them below it, indented deeper than the dash", tag));
  YamlFields fields(item, std::string(row->tag), document, faults);
  return row->read(&fields, place_of(document, item));
}

}  // namespace lockstep::recal
