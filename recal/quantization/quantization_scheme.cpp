#include "recal/quantization/quantization_scheme.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

// Readers of quantization schemes and of the layers that they apply to.
namespace lockstep::recal {
// Compares a scheme with the one that is supported: 8-bit integers, symmetric weights, asymmetric
// inputs, no rounded outputs. Each difference becomes a fault in LayerScheme::unsupported.
namespace {

constexpr int64_t kBits = 8;
constexpr double kMostBits = 64;
constexpr double kAveragingConstant = 0.01;  // must equal kAveraging of fake_quantizer.cpp
constexpr std::string_view kWayOut = "; or exclude the layers: ignore";

/// Returns the value of a key, including an explicit null; undefined if the key is absent.
YAML::Node value_of(const ConfigReader& in, std::string_view key) {
  const YAML::Node& map = in.node();
  return map.IsDefined() && map.IsMap() ? map[std::string(key)]
                                        : YAML::Node(YAML::NodeType::Undefined);
}

bool says_none(const YAML::Node& node) {
  return node.IsNull() || (node.IsScalar() && (node.Scalar() == "null" || node.Scalar() == "None"));
}

/// Adds a fault at a key's value, or at the map if the key is missing.
void add_unsupported(const ConfigReader& in, std::string_view key, const std::string& rest,
                     LayerScheme* scheme) {
  const YAML::Node node = value_of(in, key);
  scheme->unsupported.push_back(
      in.document().fault_at(node.IsDefined() ? node : in.node(),
                             fmt::format("'{}.{}' {}{}", in.path(), key, rest, kWayOut)));
}

/// Reader of one of the three parts of a scheme.
class PartReader {
 public:
  PartReader(ConfigReader in, LayerScheme* scheme) : in_(std::move(in)), scheme_(*scheme) {}

  void read(SchemeForm form, bool is_weights) {
    // Defaults differ by form, see SchemeForm.
    bool symmetric = form == SchemeForm::kConfigGroup;
    int64_t bits = kBits;
    std::string type = "int", strategy = "tensor";
    in_.read("num_bits", &bits, between(1, kMostBits), "");
    in_.read("type", &type, "");
    in_.read("symmetric", &symmetric, "");
    in_.read("strategy", &strategy, "");
    if (bits != kBits) refuse("num_bits", std::to_string(bits), "8: layers are rounded to int8");
    if (type != "int") refuse("type", type, "int");
    // Weights must be symmetric (no zero point) and inputs asymmetric.
    if (symmetric != is_weights)
      refuse("symmetric", symmetric ? "true" : "false",
             is_weights ? "true: weights have no zero point" : "false: inputs have a zero point");
    const bool is_channel = is_weights && strategy == "channel";
    if (strategy != "tensor" && !is_channel)
      refuse("strategy", strategy,
             is_weights ? "tensor (one scale) or channel (one an output)" : "tensor (one scale)");
    if (is_weights) scheme_.per_channel = is_channel;
    read_rest();
    in_.done();
  }

 private:
  void refuse(std::string_view key, const std::string& is, std::string_view must_be) {
    add_unsupported(in_, key,
                    fmt::format("is {}{}, it must be {}", is,
                                value_of(in_, key).IsDefined() ? "" : " by default", must_be),
                    &scheme_);
  }

  /// Reads keys that may only have the value that holds here anyway.
  void read_rest() {
    bool dynamic = false;
    in_.read("dynamic", &dynamic, "");
    if (dynamic) refuse("dynamic", "true", "false: ranges are a moving average over steps");
    for (const std::string_view key : {"group_size", "block_structure", "actorder"}) {
      const YAML::Node node = in_.take(key);
      if (node.IsDefined() && !(node.IsScalar() && parse_bool(node.Scalar()) == false))
        refuse(key, node.IsScalar() ? node.Scalar() : "given", "null");
    }
    const YAML::Node observer = in_.take("observer");
    const std::string name = observer.IsScalar() ? observer.Scalar() : "";
    // `true` selects the default observer, which is minmax.
    if (observer.IsDefined() && name != "minmax" && parse_bool(name) != true)
      refuse("observer", name.empty() ? "no name" : name, "minmax");
    for (const std::string_view key : {"kwargs", "observer_kwargs"}) read_options(key);
  }

  void read_options(std::string_view key) {
    if (!in_.has(key)) {
      in_.take(key);
      return;
    }
    ConfigReader options = in_.section(key);
    if (!options.node().IsMap()) return;
    for (const auto& pair : options.node()) {
      const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
      const std::string value = pair.second.IsScalar() ? pair.second.Scalar() : "";
      if (name == "reduce_range" && parse_bool(value) == false) continue;
      if (name == "averaging_constant" && parse_number(value) == kAveragingConstant) continue;
      add_unsupported(options, name,
                      fmt::format("is not supported: reduce_range: false and averaging_constant: "
                                  "{} hold here anyway",
                                  kAveragingConstant),
                      &scheme_);
    }
  }

  ConfigReader in_;
  LayerScheme& scheme_;
};

/// Returns true if the part is quantized. Its options go to the scheme.
bool read_part(ConfigReader* in, std::string_view key, SchemeForm form, LayerScheme* scheme) {
  const YAML::Node node = value_of(*in, key);
  in->take(key);
  const bool is_outputs = key == "output_activations", is_weights = key == "weights";
  if (!node.IsDefined()) return form == SchemeForm::kScheme && !is_outputs;
  if (says_none(node)) return false;
  // null is the only supported value, so a map is a fault even if its options are usual ones.
  if (is_outputs) {
    add_unsupported(*in, key, "must be null: outputs of layers are not rounded, their inputs are",
                    scheme);
    return true;
  }
  PartReader(ConfigReader(node, in->path() + "." + std::string(key), in->document(), in->faults()),
             scheme)
      .read(form, is_weights);
  return true;
}

void refuse_half(ConfigReader* in, std::string_view missing, LayerScheme* scheme) {
  add_unsupported(
      *in, missing,
      fmt::format("is {}: a layer is quantized in both its weights and its inputs, or not at all; "
                  "write num_bits: 8 and symmetric: {} there",
                  value_of(*in, missing).IsDefined() ? "null" : "missing", missing == "weights"),
      scheme);
}

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
        "'{}' is not a class of layers; available: Linear, Conv1d, Conv2d and Conv3d", text);
  if (!error.empty()) in->fault_at(node, error);
  return pattern;
}

bool names(const NamePattern& pattern, const std::string& name) {
  return pattern.names(name) || pattern.names_above(name);
}

}  // namespace

LayerScheme read_layer_scheme(ConfigReader* in, SchemeForm form) {
  LayerScheme scheme;
  const bool weights = read_part(in, "weights", form, &scheme);
  const bool inputs = read_part(in, "input_activations", form, &scheme);
  const bool outputs = read_part(in, "output_activations", form, &scheme);
  in->take("target_hardware");  // a name without effect here
  // A layer with one rounded side counts as quantized; refuse_half() reports the missing side.
  scheme.quantized = weights || inputs || outputs;
  if (weights != inputs) refuse_half(in, weights ? "input_activations" : "weights", &scheme);
  return scheme;
}

LayerScheme read_scheme_or_name(const YAML::Node& node, const std::string& path,
                                const LayerScheme& otherwise, ConfigReader* in) {
  if (says_none(node)) return otherwise;
  const auto fault = [&](std::string message) {
    return in->document().fault_at(node, std::move(message));
  };
  LayerScheme scheme;
  if (node.IsMap()) {
    ConfigReader fields(node, path, in->document(), in->faults());
    scheme = read_layer_scheme(&fields, SchemeForm::kScheme);
    fields.done();
    return scheme;
  }
  const std::string name = node.IsScalar() ? node.Scalar() : "";
  if (name == "default") return otherwise;
  if (name == "tensorrt") {
    scheme.unsupported.push_back(fault(fmt::format(
        "'{}' is tensorrt, which rounds inputs symmetrically: inputs have a zero point here; write "
        "deepsparse{}",
        path, kWayOut)));
  } else if (name != "deepsparse") {
    in->faults()->add(
        fault(fmt::format("'{}' must be a map of weights and input_activations, or one of default, "
                          "deepsparse, tensorrt",
                          path)));
  }
  return scheme;
}

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
    in->refuse(key, "must be a list of names of layers, re:patterns and classes");
  }
  return targets;
}

}  // namespace lockstep::recal
