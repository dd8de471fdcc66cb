#include "recal/schedule/modifier_table.h"

#include <array>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::recal {

// Each of these is defined in the source of its modifier.
Modifiers read_acdc_pruning(ConfigReader* in, const SourceLocation& location);
Modifiers read_constant_ks(ConfigReader* in, const SourceLocation& location);
Modifiers read_distillation(ConfigReader* in, const SourceLocation& location);
Modifiers read_epoch_range(ConfigReader* in, const SourceLocation& location);
Modifiers read_gradual_ks(ConfigReader* in, const SourceLocation& location);
Modifiers read_gradual_param(ConfigReader* in, const SourceLocation& location);
Modifiers read_learning_rate(ConfigReader* in, const SourceLocation& location);
Modifiers read_learning_rate_function(ConfigReader* in, const SourceLocation& location);
Modifiers read_mfac_pruning(ConfigReader* in, const SourceLocation& location);
Modifiers read_movement_pruning(ConfigReader* in, const SourceLocation& location);
Modifiers read_obs_pruning(ConfigReader* in, const SourceLocation& location);
Modifiers read_quantization(ConfigReader* in, const SourceLocation& location);
Modifiers read_set_learning_rate(ConfigReader* in, const SourceLocation& location);
Modifiers read_set_param(ConfigReader* in, const SourceLocation& location);
Modifiers read_set_weight_decay(ConfigReader* in, const SourceLocation& location);
Modifiers read_trainable_params(ConfigReader* in, const SourceLocation& location);

namespace {

/// Other name of a modifier, from SparseML. The modifier's reader sees the name as written
/// (ConfigReader::path()).
struct AliasRow {
  std::string_view alias;
  std::string_view tag;
  std::string_view addition;  ///< keys that the name implies
};
constexpr std::array kAliases = {
    AliasRow{"GMPruningModifier", "GradualKSModifier", ""},
    AliasRow{"MagnitudePruningModifier", "GradualKSModifier", ""},
    AliasRow{"GlobalMagnitudePruningModifier", "GradualKSModifier", " with global_sparsity: true"},
    AliasRow{"ConstantPruningModifier", "ConstantKSModifier", ""},
    AliasRow{"LegacyQuantizationModifier", "QuantizationModifier", ""},
    AliasRow{"OutputDistillationModifier", "DistillationModifier", ""},
};

/// All names that a tag may have, including aliases.
std::vector<std::string> names() {
  std::vector<std::string> names = modifier_kinds().names();
  for (const AliasRow& row : kAliases) names.emplace_back(row.alias);
  return names;
}

/// Returns " (did you mean ...?)" or "". Compares names without the common ending "Modifier", which
/// would make all of them similar.
std::string nearest_name(const std::string& name) {
  constexpr std::string_view kEnding = "Modifier";
  if (!name.ends_with(kEnding)) return did_you_mean(name, names());
  std::vector<std::string> stems;
  for (const std::string& each : names())
    stems.push_back(each.substr(0, each.size() - kEnding.size()));
  const std::string near = nearest_word(name.substr(0, name.size() - kEnding.size()), stems);
  return near.empty() ? "" : fmt::format(" (did you mean '{}{}'?)", near, kEnding);
}

/// List of all names for messages: "!A, !B; other names: !C (= !A)".
std::string name_list() {
  std::string tags;
  std::string aliases;
  for (const std::string& name : modifier_kinds().names()) tags += fmt::format(", !{}", name);
  for (const AliasRow& row : kAliases)
    aliases += fmt::format(", !{} (= !{}{})", row.alias, row.tag, row.addition);
  return tags.substr(2) + "; other names: " + aliases.substr(2);
}

/// True for an explicit tag. yaml-cpp gives "?" or "" to plain nodes and "!" to quoted texts.
bool has_tag(const std::string& tag) { return tag.size() > 1; }

const ModifierKind* find_kind(std::string_view name) {
  for (const AliasRow& alias : kAliases)
    if (alias.alias == name) name = alias.tag;
  return modifier_kinds().find(name);
}

std::string no_tag_message(const YAML::Node& item) {
  if (item.IsMap() && item.size() > 0 && item.begin()->first.IsScalar()) {
    const std::string& key = item.begin()->first.Scalar();
    if (find_kind(key) != nullptr)
      return fmt::format("a modifier is named by a tag: write '- !{}' without a colon", key);
  }
  return "an item of 'modifiers' needs a tag that names it, such as !GradualKSModifier; "
         "available: " +
         name_list();
}

std::string unknown_tag_message(const std::string& tag) {
  const std::string name = tag.front() == '!' ? tag.substr(1) : tag;
  const std::string shown = tag.front() == '!' ? tag : "'" + tag + "'";
  return fmt::format("unknown modifier {}{}; available: {}", shown, nearest_name(name),
                     name_list());
}

}  // namespace

NamedTable<ModifierKind>& modifier_kinds() {
  static NamedTable<ModifierKind> kinds = [] {
    NamedTable<ModifierKind> own("modifier");
    own.add({"EpochRangeModifier", read_epoch_range});
    own.add({"ConstantKSModifier", read_constant_ks});
    own.add({"GradualKSModifier", read_gradual_ks});
    own.add({"SetLearningRateModifier", read_set_learning_rate});
    own.add({"LearningRateModifier", read_learning_rate});
    own.add({"LearningRateFunctionModifier", read_learning_rate_function});
    own.add({"SetWeightDecayModifier", read_set_weight_decay});
    own.add({"TrainableParamsModifier", read_trainable_params});
    own.add({"QuantizationModifier", read_quantization});
    own.add({"SetParamModifier", read_set_param});
    own.add({"GradualParamModifier", read_gradual_param});
    own.add({"DistillationModifier", read_distillation});
    own.add({"OBSPruningModifier", read_obs_pruning});
    own.add({"MFACPruningModifier", read_mfac_pruning});
    own.add({"MovementPruningModifier", read_movement_pruning});
    own.add({"ACDCPruningModifier", read_acdc_pruning});
    return own;
  }();
  return kinds;
}

Modifiers read_modifier(const YAML::Node& item, const YamlDocument& document, Diagnostics* faults) {
  const auto refuse = [&](std::string message) {
    faults->add(document.fault_at(item, std::move(message)));
    return Modifiers();
  };
  const std::string tag = item.Tag();
  if (!has_tag(tag)) return refuse(no_tag_message(item));
  const ModifierKind* kind = tag.front() == '!' ? find_kind(tag.substr(1)) : nullptr;
  if (kind == nullptr) return refuse(unknown_tag_message(tag));
  if (!item.IsMap())
    return refuse(
        fmt::format("{} has no keys: write them below it, indented deeper than the dash", tag));
  ConfigReader fields(item, tag.substr(1), document, faults);
  return kind->read(&fields, location_of(document, item));
}

Modifiers read_named_modifier(const YAML::Node& name, const YAML::Node& body,
                              const YamlDocument& document, Diagnostics* faults) {
  const auto refuse = [&](std::string message) {
    faults->add(document.fault_at(name, std::move(message)));
    return Modifiers();
  };
  const std::string text = name.IsScalar() ? name.Scalar() : "";
  const ModifierKind* kind = find_kind(text);
  if (kind == nullptr) return refuse(unknown_tag_message("!" + text));
  if (!body.IsMap()) return refuse(fmt::format("{} has no keys: write them below it", text));
  ConfigReader fields(body, text, document, faults);
  return kind->read(&fields, location_of(document, name));
}

bool is_modifier_name(std::string_view text) { return text.ends_with("Modifier"); }

}  // namespace lockstep::recal
