#include "recal/quantization/quantized_layers.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
// Reads the two forms of SparseML: `scheme` with overrides, and `config_groups`. Both become a list
// of rules, which choose() applies to the model's layers. Faults of a scheme are kept until a layer
// is known to have it.
namespace {

constexpr size_t kMaxLayersShown = 8;
constexpr std::string_view kNothing =
    "no layer is quantized: every linear layer and convolution is ignored or has no scheme";

std::string list_of(const std::vector<std::string>& texts) {
  const size_t shown = std::min(texts.size(), kMaxLayersShown);
  const std::string list = fmt::format(
      "{}", fmt::join(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown == texts.size() ? list : fmt::format("{} and {} more", list, texts.size() - shown);
}

std::string_view strategy(const LayerScheme& scheme) {
  return scheme.per_channel ? "channel" : "tensor";
}

/// True if some target can be a layer that is quantized here.
bool has_known_target(const std::vector<LayerTarget>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [](const LayerTarget& target) { return !target.is_foreign_class(); });
}

std::string no_module_message(const LayerTarget& target, const std::vector<LayerInfo>& layers) {
  std::vector<std::string> names;
  for (const LayerInfo& layer : layers) names.push_back(layer.name);
  const std::string hint = did_you_mean(target.text(), names);
  return fmt::format("the model has nothing named '{}'{}", target.text(),
                     hint.empty() ? "; its layers are " + list_of(names) : hint);
}

/// True if both keys are present, which is a fault at the second one.
bool clash(ConfigReader* in, std::string_view a, std::string_view b) {
  if (!in->has(a) || !in->has(b)) return false;
  in->fault(b, fmt::format("'{}.{}' and '{}' both say how layers are quantized: keep one of them",
                           in->path(), b, a));
  return true;
}

}  // namespace

void QuantizedLayers::read(ConfigReader* in) {
  if (in->has("submodules")) submodules_.emplace().read(in, "submodules");
  in->take("submodules");
  ignore_ = read_layer_targets(in, "ignore");
  std::string weights = "per_channel";
  in->read_choice("weights", &weights, {"per_channel", "per_tensor"},
                  "a scale per output channel of a weight, or one for all of it");
  scheme_.per_channel = weights == "per_channel";
  // One clash is enough for each key, hence the short circuit.
  clash(in, "config_groups", "weights") || clash(in, "scheme", "weights");
  clash(in, "config_groups", "scheme") || clash(in, "config_groups", "scheme_overrides");
  read_schemes(in);
  read_groups(in);
  in->read("strict", &strict_, "whether each name must be in the model");
}

void QuantizedLayers::read_schemes(ConfigReader* in) {
  constexpr std::string_view kOverrides = "scheme_overrides";
  const YAML::Node scheme = in->take("scheme");
  // Next to schemes, an absent `weights` means SparseML's default: one scale per tensor.
  if ((scheme.IsDefined() || in->has(kOverrides)) && !in->has("weights"))
    scheme_.per_channel = false;
  if (scheme.IsDefined())
    scheme_ = read_scheme_or_name(scheme, in->path() + ".scheme", LayerScheme(), in);
  const YAML::Node overrides = in->take(kOverrides);
  if (!overrides.IsDefined()) return;
  if (!overrides.IsMap())
    return in->fault(kOverrides, fmt::format("'{}.{}' must be a map from names of layers and "
                                             "classes to schemes",
                                             in->path(), kOverrides));
  for (const auto& pair : overrides) {
    Rule rule;
    rule.targets.emplace_back(pair.first, kOverrides, in);
    rule.scheme = read_scheme_or_name(
        pair.second, fmt::format("{}.{}.{}", in->path(), kOverrides, rule.targets.front().text()),
        scheme_, in);
    rules_.push_back(std::move(rule));
  }
}

void QuantizedLayers::read_groups(ConfigReader* in) {
  constexpr std::string_view kGroups = "config_groups";
  has_groups_ = in->has(kGroups);
  const YAML::Node groups = in->take(kGroups);
  if (!has_groups_) return;
  if (!groups.IsMap() || groups.size() == 0)
    return in->fault(kGroups, fmt::format("'{}.{}' must be a map of groups, each with targets, "
                                          "weights and input_activations",
                                          in->path(), kGroups));
  for (const auto& pair : groups) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "?";
    ConfigReader group(pair.second, fmt::format("{}.{}.{}", in->path(), kGroups, name),
                       in->document(), in->faults());
    Rule rule;
    group.require("targets");
    rule.targets = read_layer_targets(&group, "targets");
    rule.scheme = read_layer_scheme(&group, SchemeForm::kConfigGroup);
    group.done();
    rules_.push_back(std::move(rule));
  }
}

const LayerScheme* QuantizedLayers::scheme_of(const LayerInfo& layer,
                                              const std::vector<int64_t>& weight_sizes) const {
  for (const LayerTarget& target : ignore_)
    if (target.match(layer, weight_sizes) > 0) return nullptr;
  // With groups, a layer without a group is not quantized. Else `scheme` is the default.
  const LayerScheme* best = has_groups_ ? nullptr : &scheme_;
  size_t narrowest = 0;
  for (const Rule& rule : rules_)
    for (const LayerTarget& target : rule.targets) {
      const size_t match = target.match(layer, weight_sizes);
      // The first rule wins among equally specific ones.
      if (match <= narrowest) continue;
      narrowest = match;
      best = &rule.scheme;
    }
  return best != nullptr && best->quantized ? best : nullptr;
}

bool QuantizedLayers::per_channel() const {
  if (!has_groups_) return scheme_.per_channel;
  return std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) {
    return rule.scheme.per_channel && has_known_target(rule.targets);
  });
}

/// All entries whose names must exist in the model.
std::vector<const LayerTarget*> QuantizedLayers::all_targets() const {
  std::vector<const LayerTarget*> all;
  for (const LayerTarget& target : ignore_) all.push_back(&target);
  for (const Rule& rule : rules_)
    for (const LayerTarget& target : rule.targets) all.push_back(&target);
  return all;
}

/// Refuses names that match nothing. Adds a note about classes that are never quantized.
void QuantizedLayers::check_targets(TimelineBuilder* builder) const {
  const auto& layers = builder->inputs().layers;
  const auto& params = builder->inputs().params;
  std::vector<std::string> foreign;
  for (const LayerTarget* target : all_targets()) {
    const bool is_in = params && target->is_in(layers, *params);
    if (target->is_foreign_class() && !is_in) {
      foreign.push_back(target->text());
    } else if (params && !is_in) {
      const std::string message = no_module_message(*target, layers);
      strict_ ? builder->fault(target->location().fault(message)) : builder->warn(message);
    }
  }
  if (!foreign.empty())
    builder->note(fmt::format("only linear layers and convolutions are quantized: {} {} none",
                              list_of(foreign), foreign.size() == 1 ? "is" : "are"));
}

void QuantizedLayers::check_without_model(TimelineBuilder* builder) const {
  std::vector<const LayerScheme*> schemes;
  // Without a model any layer might have any of the schemes, so all of them are checked.
  if (!has_groups_) schemes.push_back(&scheme_);
  for (const Rule& rule : rules_)
    if (has_known_target(rule.targets)) schemes.push_back(&rule.scheme);
  bool quantizes = false;
  for (const LayerScheme* scheme : schemes) {
    for (const Fault& fault : scheme->unsupported) builder->fault(fault);
    quantizes = quantizes || scheme->quantized;
  }
  if (!quantizes) builder->fault(std::string(kNothing));
}

QuantizedLayers::Choice QuantizedLayers::choose(TimelineBuilder* builder) const {
  const TimelineInputs& inputs = builder->inputs();
  if (inputs.params && inputs.layers.empty()) {
    builder->fault("the model has no layer to quantize: no linear layer or convolution");
    return {};
  }
  check_targets(builder);
  Choice choice{.layers = {}, .per_channel = per_channel()};
  if (!inputs.params) return check_without_model(builder), choice;
  std::vector<const LayerScheme*> schemes;  // of the chosen layers
  const auto wanted = builder->resolve_layers(submodules_ ? &*submodules_ : nullptr);
  for (const int64_t index : wanted) {
    const LayerInfo& layer = inputs.layers[static_cast<size_t>(index)];
    const auto& weight = (*inputs.params)[static_cast<size_t>(layer.weight_param)];
    const LayerScheme* scheme = scheme_of(layer, weight.sizes);
    if (scheme == nullptr) continue;
    // FakeQuantizer has one setting for all layers.
    if (!schemes.empty() && scheme->per_channel != schemes.front()->per_channel) {
      const LayerInfo& first = inputs.layers[static_cast<size_t>(choice.layers.front())];
      builder->fault(
          fmt::format("the weights of '{}' have the strategy {}, those of '{}' have {}: it holds "
                      "for the whole model, write the same one",
                      first.name, strategy(*schemes.front()), layer.name, strategy(*scheme)));
      return {};
    }
    // Each scheme reports its faults once, not once per layer.
    if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end())
      for (const Fault& fault : scheme->unsupported) builder->fault(fault);
    schemes.push_back(scheme);
    choice.layers.push_back(index);
  }
  if (!schemes.empty())
    choice.per_channel = schemes.front()->per_channel;
  else if (!wanted.empty())
    builder->fault(std::string(kNothing));
  return choice;
}

std::string QuantizedLayers::text() const {
  std::vector<std::string> on, off;
  for (const LayerTarget& target : ignore_)
    if (!target.is_foreign_class()) off.push_back(target.text());
  for (const Rule& rule : rules_)
    for (const LayerTarget& target : rule.targets)
      if (!target.is_foreign_class() && (has_groups_ || !rule.scheme.quantized))
        (rule.scheme.quantized ? on : off).push_back(target.text());
  std::string text = submodules_ ? submodules_->text() : "__ALL__";
  if (has_groups_) text = "[" + list_of(on) + "]";
  return off.empty() ? text : fmt::format("{} except [{}]", text, list_of(off));
}

}  // namespace lockstep::recal
