#include "recal/quantization/layer_targets.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::recal {
namespace {

/// Class of layers, recognised by the number of dimensions of its weight.
struct LayerClass {
  std::string_view name;
  size_t num_dims;
};
constexpr std::array kClasses = {LayerClass{"Linear", 2}, LayerClass{"Conv1d", 3},
                                 LayerClass{"Conv2d", 4}, LayerClass{"Conv3d", 5}};

const LayerClass* find_class(std::string_view text) {
  const auto found =
      std::find_if(kClasses.begin(), kClasses.end(), [&](const auto& c) { return c.name == text; });
  return found == kClasses.end() ? nullptr : found;
}

/// True for words in the form of Python class names: Embedding, QuantizableBatchMatMul,
/// BMMOutput_QK.
bool looks_like_class(std::string_view text) {
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !text.empty() && std::isupper(static_cast<unsigned char>(text.front())) != 0 &&
         std::all_of(text.begin(), text.end(), is_part);
}

/// True for fused layers such as LinearReLU and ConvBn2d, which do not exist here.
bool is_fused_class(std::string_view text) {
  return looks_like_class(text) && find_class(text) == nullptr &&
         (text.starts_with("Linear") || text.starts_with("Conv"));
}

std::string text_of(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }

NamePattern pattern_of(const YAML::Node& node, std::string_view key, ConfigReader* in) {
  const std::string text = text_of(node);
  std::string error;
  NamePattern pattern(text, &error);
  if (text.empty())
    error = fmt::format("an entry of {} must be a layer's name, a re:pattern or a class", key);
  else if (is_fused_class(text))
    error = fmt::format(
        "'{}' is no class of layers here: there are Linear, Conv1d, Conv2d and "
        "Conv3d, each by itself",
        text);
  if (!error.empty()) in->faults()->add(in->document().fault_at(node, error));
  return pattern;
}

bool names(const NamePattern& pattern, const std::string& name) {
  return pattern.names(name) || pattern.names_above(name);
}

}  // namespace

LayerTarget::LayerTarget(const YAML::Node& node, std::string_view key, ConfigReader* in)
    : pattern_(pattern_of(node, key, in)), location_(location_of(in->document(), node)) {}

bool LayerTarget::is_foreign_class() const {
  return !pattern_.is_regex() && looks_like_class(text()) && find_class(text()) == nullptr;
}

size_t LayerTarget::match(const LayerInfo& layer, const std::vector<int64_t>& weight_sizes) const {
  // 1 + length: a match by name beats every match by class.
  if (names(pattern_, layer.name)) return 1 + text().size();
  const LayerClass* type = find_class(text());
  return type != nullptr && weight_sizes.size() == type->num_dims ? 1 : 0;
}

bool LayerTarget::is_in(const std::vector<LayerInfo>& layers,
                        const std::vector<ParamInfo>& params) const {
  return find_class(text()) != nullptr ||
         std::any_of(layers.begin(), layers.end(),
                     [&](const LayerInfo& layer) { return names(pattern_, layer.name); }) ||
         std::any_of(params.begin(), params.end(),
                     [&](const ParamInfo& param) { return names(pattern_, param.name); });
}

std::vector<LayerTarget> read_layer_targets(ConfigReader* in, std::string_view key) {
  std::vector<LayerTarget> targets;
  const YAML::Node node = in->take(key);
  if (!node.IsDefined()) return targets;
  if (node.IsScalar()) {
    targets.emplace_back(node, key, in);
  } else if (node.IsSequence()) {
    for (const YAML::Node& item : node) targets.emplace_back(item, key, in);
  } else {
    in->fault(key, fmt::format("'{}.{}' must be a list of names of layers, re:patterns and classes",
                               in->path(), key));
  }
  return targets;
}

}  // namespace lockstep::recal
