#include "infer/sparse/fusion.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "infer/sparse/onnx_operators.h"

// One pass over the nodes. An operator that follows a layer, and is the only user of its outputs,
// becomes part of the layer. The layer then moves to the place of the operator, where a residual
// has been computed too. A rounding gives the layer a second output, which other users of the first
// one do not hinder. Layers take rounded inputs directly: what dequantizes them is dropped at the
// end if nothing else needs it.
namespace lockstep::infer {
namespace {

class Fuser {
 public:
  explicit Fuser(OnnxGraph graph) : graph_(std::move(graph)) {}

  FusedGraph run() {
    const at::NoGradGuard no_grad;
    drop_copies();
    for (const OnnxNode& node : graph_.nodes)
      for (const std::string& input : node.inputs) ++num_uses_[input];
    for (const OnnxValue& output : graph_.outputs) ++num_uses_[output.name];
    for (OnnxNode& node : graph_.nodes) add(std::move(node));
    FusedGraph fused{.constants = std::move(graph_.constants),
                     .inputs = std::move(graph_.inputs),
                     .outputs = std::move(graph_.outputs)};
    std::vector<Step> steps;
    for (auto& step : steps_)
      if (step) steps.push_back(*std::move(step));
    fused.steps = used(std::move(steps), fused.outputs);
    keep_used(&fused);
    return fused;
  }

 private:
  /// Replaces the outputs of operators that do nothing by their inputs, and those of a rounding
  /// that equals an earlier one by its outputs.
  void drop_copies() {
    std::map<std::string, std::string> same;
    std::map<std::string, std::vector<std::pair<std::string, Rounding>>> roundings;  // of a value
    const auto replace = [&](std::string* name) {
      if (const auto found = same.find(*name); found != same.end()) *name = found->second;
    };
    for (OnnxNode& node : graph_.nodes) {
      for (std::string& input : node.inputs) replace(&input);
      if (node.inputs.empty()) continue;
      const bool does_nothing = node.op == "Identity" || node.op == "Dropout";
      if (does_nothing) same[node.outputs[0]] = node.inputs[0];
      const auto rounding = node.op == "QuantizeLinear" ? rounding_of(node) : std::nullopt;
      if (!rounding) continue;
      auto& known = roundings[node.inputs[0]];
      const auto found =
          std::ranges::find(known, *rounding, &std::pair<std::string, Rounding>::second);
      if (found == known.end())
        known.emplace_back(node.outputs[0], *rounding);
      else
        same[node.outputs[0]] = found->first;
    }
    std::erase_if(graph_.nodes,
                  [&](const OnnxNode& node) { return same.contains(node.outputs[0]); });
    for (OnnxValue& output : graph_.outputs) replace(&output.name);
  }

  /// Drops roundings and their opposites whose outputs nothing uses, and values of layers that are
  /// needed rounded only.
  static std::vector<Step> used(std::vector<Step> steps, const std::vector<OnnxValue>& outputs) {
    std::set<std::string> names;
    for (const OnnxValue& output : outputs) names.insert(output.name);
    std::vector<Step> kept;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      const auto is_used = [&](const std::string& name) { return names.contains(name); };
      if (step->rounding && std::ranges::none_of(step->node.outputs, is_used)) continue;
      if (step->layer && step->layer->output_rounding)
        step->layer->keeps_values = is_used(step->node.outputs[0]);
      names.insert(step->node.inputs.begin(), step->node.inputs.end());
      kept.push_back(std::move(*step));
    }
    std::ranges::reverse(kept);
    return kept;
  }

  static void keep_used(FusedGraph* graph) {
    std::map<std::string, at::Tensor> used;
    const auto keep = [&](const std::string& name) {
      if (const auto found = graph->constants.find(name); found != graph->constants.end())
        used.insert(*found);
    };
    for (const Step& step : graph->steps)
      for (const std::string& name : step.node.inputs) keep(name);
    for (const OnnxValue& output : graph->outputs) keep(output.name);
    graph->constants = std::move(used);
  }

  /// Returns a constant of the node; undefined: not given, or not constant.
  at::Tensor constant(const OnnxNode& node, size_t input) const {
    if (input >= node.inputs.size()) return {};
    const auto found = graph_.constants.find(node.inputs[input]);
    return found == graph_.constants.end() ? at::Tensor() : found->second;
  }
  static bool is_given(const OnnxNode& node, size_t input) {
    return input < node.inputs.size() && !node.inputs[input].empty();
  }

  void add(OnnxNode node) {
    if (fold(node) || round(node) || fuse(node)) return;
    if (auto layer = layer_of(node)) {
      layer->integers = integers_of(node, *layer);
      node.outputs.resize(1);
      node.inputs = {layer->integers ? rounded_[node.inputs[0]] : node.inputs[0]};
      layer->name = node.name.empty() ? node.outputs[0] : node.name;
      push({.node = std::move(node), .layer = std::move(layer)});
      return;
    }
    if (!knows_onnx_operator(node.op))
      throw Error(
          ExitCode::kUsage, "infer",
          fmt::format("node '{}': the ONNX operator {} is not supported; run this file with "
                      "onnxruntime",
                      node.name, node.op));
    push({.node = std::move(node)});
  }

  void push(Step step) {
    if (step.layer) layers_[step.node.outputs[0]] = steps_.size();
    steps_.emplace_back(std::move(step));
  }

  /// Computes a node whose inputs are all constant.
  bool fold(const OnnxNode& node) {
    if (!knows_onnx_operator(node.op)) return false;
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      inputs.push_back(constant(node, i));
      if (is_given(node, i) && !inputs.back().defined()) return false;
    }
    const std::vector<at::Tensor> outputs = run_onnx(node, inputs);
    remember_scales(node);
    for (size_t i = 0; i < std::min(outputs.size(), node.outputs.size()); ++i)
      graph_.constants[node.outputs[i]] = outputs[i];
    return true;
  }

  /// Remembers the scales of a constant that is dequantized, perhaps transposed afterwards.
  void remember_scales(const OnnxNode& node) {
    if (node.op == "DequantizeLinear") {
      const int64_t rank = constant(node, 0).dim(), axis = node.get<int64_t>("axis", 1);
      scales_[node.outputs[0]] = {constant(node, 1), axis < 0 ? axis + rank : axis};
    }
    const auto found = node.inputs.empty() ? scales_.end() : scales_.find(node.inputs[0]);
    if (node.op == "Transpose" && found != scales_.end() && constant(node, 0).dim() == 2) {
      const bool is_swapped = node.ints("perm", {1, 0}) == std::vector<int64_t>{1, 0};
      scales_[node.outputs[0]] = {found->second.values,
                                  is_swapped ? 1 - found->second.axis : found->second.axis};
    }
  }

  /// Returns the rounding of a QuantizeLinear or DequantizeLinear of one scale.
  std::optional<Rounding> rounding_of(const OnnxNode& node) const {
    const at::Tensor scale = constant(node, 1), zero = constant(node, 2);
    const bool has_zero = is_given(node, 2);
    if (!scale.defined() || scale.numel() != 1 || scale.scalar_type() != at::kFloat ||
        (has_zero && (!zero.defined() || zero.numel() != 1)))
      return std::nullopt;
    Rounding rounding{.scale = scale.item<float>()};
    if (has_zero) {
      rounding.is_signed = zero.scalar_type() == at::kChar;
      if (!rounding.is_signed && zero.scalar_type() != at::kByte) return std::nullopt;
      rounding.zero = zero.item<int32_t>() + (rounding.is_signed ? 128 : 0);
    }
    if (!std::isnormal(rounding.scale) || rounding.scale < 0) return std::nullopt;
    return rounding;
  }

  /// Adds a rounding of a value, or its opposite. Returns false for other nodes.
  bool round(const OnnxNode& node) {
    const bool is_back = node.op == "DequantizeLinear";
    if (!is_back && node.op != "QuantizeLinear") return false;
    const std::optional<Rounding> rounding = rounding_of(node);
    if (!rounding) return false;
    const std::string &input = node.inputs[0], &output = node.outputs[0];
    if (is_back) {
      // A rounding and its opposite are a pair if they agree. Others are computed as written.
      const auto bytes = bytes_.find(input);
      if (bytes == bytes_.end() || bytes->second != *rounding) return false;
      rounded_[output] = input;
      push({.node = node, .rounding = rounding});
      return true;
    }
    bytes_[output] = *rounding;
    const auto found = layers_.find(input);
    Layer* const layer = found == layers_.end() ? nullptr : &*steps_[found->second]->layer;
    if (layer == nullptr || !layer->integers || layer->output_rounding) {
      push({.node = node, .rounding = rounding});
      return true;
    }
    layer->output_rounding = rounding;
    steps_[found->second]->node.outputs.push_back(output);
    layers_[output] = found->second;
    return true;
  }

  /// Returns the integers of a layer whose input and weight are dequantized.
  std::optional<Integers> integers_of(const OnnxNode& node, const Layer& layer) const {
    const auto input = rounded_.find(node.inputs[0]);
    const auto scales = node.inputs.size() < 2 ? scales_.end() : scales_.find(node.inputs[1]);
    if (input == rounded_.end() || scales == scales_.end() || layer.takes_max) return std::nullopt;
    // Output channels are axis 0 of a convolution, and of a matrix that is not transposed axis 1.
    const bool is_transposed = node.op != "Conv" && node.get<int64_t>("transB", 0) == 0;
    const auto& [values, axis] = scales->second;
    const int64_t num_outputs = layer.weight.size(0);
    if (values.numel() != 1 && (values.numel() != num_outputs || axis != (is_transposed ? 1 : 0)))
      return std::nullopt;
    const at::Tensor scale_O = values.flatten().expand({num_outputs}).to(at::kFloat);
    const at::Tensor weight =
        (layer.weight / scale_O.reshape({-1, 1, 1, 1})).nan_to_num(1e9).round();
    const auto largest = weight.abs().max().item<double>();
    const auto largest_sum = weight.abs().flatten(1).sum(1).max().item<double>();
    constexpr double kMostSum = 2147483647.0 / 255;  // of an int32
    if (largest > 127 || largest_sum > kMostSum || node.get<double>("alpha", 1) != 1)
      return std::nullopt;
    const Rounding& rounding = bytes_.at(input->second);
    return Integers{.weight = weight.to(at::kChar).contiguous(),
                    .factors_O = scale_O * rounding.scale,
                    .inputs = rounding};
  }

  static std::optional<Layer> with_weight(const at::Tensor& weight, const at::Tensor& bias) {
    if (weight.scalar_type() != at::kFloat || weight.numel() == 0) return std::nullopt;
    Layer layer{.weight = weight.contiguous()};
    const int64_t num_outputs = weight.size(0);
    layer.bias = at::zeros({num_outputs}, at::kFloat);
    if (!bias.defined()) return layer;
    const bool fits =
        bias.scalar_type() == at::kFloat && (bias.numel() == 1 || bias.numel() == num_outputs);
    if (!fits) return std::nullopt;
    layer.bias += bias.flatten();
    return layer;
  }

  std::optional<Layer> layer_of(const OnnxNode& node) const {
    if (node.op == "MaxPool" || node.op == "AveragePool") return pooling(node);
    const at::Tensor weight = constant(node, 1), bias = constant(node, 2);
    if (!weight.defined() || (is_given(node, 2) && !bias.defined())) return std::nullopt;
    if (node.op == "Conv") return convolution(node, weight, bias);
    if (weight.dim() != 2) return std::nullopt;
    if (node.op == "MatMul") return linear(weight.t(), {});
    if (node.op != "Gemm" || node.get<int64_t>("transA", 0) != 0) return std::nullopt;
    const double alpha = node.get("alpha", 1.0), beta = node.get("beta", 1.0);
    return linear((node.get<int64_t>("transB", 0) != 0 ? weight : weight.t()) * alpha,
                  bias.defined() ? bias * beta : bias);
  }

  static std::optional<Layer> linear(const at::Tensor& weight, const at::Tensor& bias) {
    auto layer = with_weight(weight.unsqueeze(2).unsqueeze(3), bias);
    if (layer) layer->is_linear = true;
    return layer;
  }

  static std::optional<Layer> convolution(const OnnxNode& node, const at::Tensor& weight,
                                          const at::Tensor& bias) {
    const auto padding = node.get<std::string>("auto_pad", "NOTSET");
    if (weight.dim() != 4 || (padding != "NOTSET" && padding != "VALID")) return std::nullopt;
    auto layer = with_weight(weight, bias);
    if (!layer) return std::nullopt;
    layer->groups = node.get<int64_t>("group", 1);
    read_places(node, &*layer);
    if (layer->groups < 1 || weight.size(0) % layer->groups != 0)
      node.refuse("its groups do not divide its outputs");
    return layer;
  }

  /// Makes a layer of a pooling of as many channels as another layer has outputs.
  std::optional<Layer> pooling(const OnnxNode& node) const {
    if (bytes_.contains(node.inputs.at(0))) return std::nullopt;  // of bytes, and gives bytes
    const auto bytes = rounded_.find(node.inputs[0]);
    const auto found = layers_.find(bytes == rounded_.end() ? node.inputs[0] : bytes->second);
    const std::vector<int64_t> kernel = node.ints("kernel_shape", {});
    const bool is_max = node.op == "MaxPool";
    constexpr int64_t kMostTaps = 64;
    if (found == layers_.end() || kernel.size() != 2 || std::ranges::min(kernel) < 1 ||
        std::ranges::max(kernel) > kMostTaps || kernel[0] * kernel[1] > kMostTaps ||
        steps_[found->second]->layer->is_linear || node.outputs.size() != 1 ||
        node.get<int64_t>("ceil_mode", 0) != 0 ||
        node.get<std::string>("auto_pad", "NOTSET") != "NOTSET")
      return std::nullopt;
    const int64_t num_channels = steps_[found->second]->layer->weight.size(0);
    const auto value = is_max ? 1.0 : 1.0 / static_cast<double>(kernel[0] * kernel[1]);
    Layer layer{.weight = at::full({num_channels, 1, kernel[0], kernel[1]}, value, at::kFloat),
                .bias = at::zeros({num_channels}, at::kFloat),
                .groups = num_channels,
                .takes_max = is_max};
    read_places(node, &layer);
    const bool has_pads = layer.pads != std::array<int64_t, 4>{};
    if (!is_max && has_pads && node.get<int64_t>("count_include_pad", 0) == 0) return std::nullopt;
    return layer;
  }

  /// Reads strides, dilations and pads.
  static void read_places(const OnnxNode& node, Layer* layer) {
    const auto read = [&](const char* name, int64_t otherwise, int64_t least, auto* values) {
      const std::vector<int64_t> given =
          node.ints(name, std::vector<int64_t>(values->size(), otherwise));
      constexpr int64_t kMost = 1 << 16;
      if (given.size() != values->size() || std::ranges::min(given) < least ||
          std::ranges::max(given) > kMost)
        node.refuse(fmt::format("its attribute '{}' has a damaged value", name));
      std::ranges::copy(given, values->begin());
    };
    read("strides", 1, 1, &layer->stride);
    read("dilations", 1, 1, &layer->dilation);
    read("pads", 0, 0, &layer->pads);
  }

  /// Fuses a node into the layer before it.
  bool fuse(const OnnxNode& node) {
    for (size_t i = 0; i < std::min<size_t>(node.inputs.size(), 2); ++i) {
      std::string name = node.inputs[i];
      if (num_uses_[name] != 1) continue;
      // Perhaps the layer's outputs are rounded before.
      const auto rounded = node.op == "Add" ? rounded_.find(name) : rounded_.end();
      if (rounded != rounded_.end()) name = rounded->second;
      const auto found = layers_.find(name);
      if (found == layers_.end() || num_uses_[name] != 1) continue;
      const size_t place = found->second;
      Step& step = *steps_[place];
      const bool is_bytes = rounded != rounded_.end();
      // A layer with both kinds of outputs stays as it is.
      if (step.layer->output_rounding.has_value() != is_bytes) continue;
      if (is_bytes && (step.layer->inner_rounding || num_uses_[step.node.outputs[0]] != 1))
        continue;
      if (!fuse_into(&step, node, i)) continue;
      if (is_bytes)
        step.layer->inner_rounding = std::exchange(step.layer->output_rounding, std::nullopt);
      Step moved = std::move(step);
      steps_[place].reset();
      std::erase_if(layers_, [&](const auto& layer) { return layer.second == place; });
      moved.node.outputs = {node.outputs[0]};
      push(std::move(moved));
      return true;
    }
    return false;
  }

  /// input: the place of the layer's outputs among the node's inputs.
  bool fuse_into(Step* step, const OnnxNode& node, size_t input) const {
    Layer& layer = *step->layer;
    if (node.op == "Relu" || node.op == "Clip") return input == 0 && clamp(&layer, node);
    if (layer.takes_max || (layer.clamps() && !layer.output_rounding)) return false;
    if (node.op == "Add") {
      const at::Tensor other = constant(node, 1 - input);
      if (layer.output_rounding && (other.defined() || layer.clamps())) return false;
      if (other.defined()) return !layer.inner_rounding && scale(&layer, {}, other);
      if (layer.adds_residual) return false;
      layer.adds_residual = true;
      const std::string& residual = node.inputs[1 - input];
      const auto bytes = layer.integers ? rounded_.find(residual) : rounded_.end();
      step->node.inputs.push_back(bytes == rounded_.end() ? residual : bytes->second);
      return true;
    }
    if (layer.adds_residual) return false;
    if (node.op == "Mul") return scale(&layer, constant(node, 1 - input), {});
    return node.op == "BatchNormalization" && input == 0 && normalize(&layer, node);
  }

  bool clamp(Layer* layer, const OnnxNode& node) const {
    Layer bounds;
    const auto bound = [&](size_t input, const char* name, float* value) {
      const at::Tensor given = constant(node, input);
      if (is_given(node, input) && (!given.defined() || given.numel() != 1)) return false;
      *value = given.defined() ? given.item<float>()
                               : static_cast<float>(node.get<double>(name, *value));
      return true;
    };
    if (node.op == "Relu")
      bounds.low = 0;
    else if (!bound(1, "min", &bounds.low) || !bound(2, "max", &bounds.high))
      return false;
    layer->low = std::min(std::max(layer->low, bounds.low), bounds.high);
    layer->high = std::min(std::max(layer->high, bounds.low), bounds.high);
    return true;
  }

  /// Applies factors and summands of the channels. Undefined: none.
  static bool scale(Layer* layer, const at::Tensor& factors, const at::Tensor& summands) {
    const int64_t num_outputs = layer->weight.size(0);
    const auto fits = [&](const at::Tensor& values) {
      if (values.scalar_type() != at::kFloat) return false;
      if (values.numel() == 1) return values.dim() <= (layer->is_linear ? 1 : 4);
      const int64_t axis = layer->is_linear ? 1 : 3;  // of channels, from the end
      return values.numel() == num_outputs && values.dim() >= axis && values.dim() <= 4 &&
             values.size(values.dim() - axis) == num_outputs;
    };
    if (factors.defined()) {
      if (!fits(factors)) return false;
      layer->weight = layer->weight * factors.reshape({-1, 1, 1, 1});
      if (layer->integers)
        layer->integers->factors_O = layer->integers->factors_O * factors.flatten();
      layer->bias = layer->bias * factors.flatten();
    }
    if (summands.defined()) {
      if (!fits(summands)) return false;
      layer->bias = layer->bias + summands.flatten();
    }
    return factors.defined() || summands.defined();
  }

  bool normalize(Layer* layer, const OnnxNode& node) const {
    std::array<at::Tensor, 4> given;
    for (size_t i = 0; i < given.size(); ++i) {
      given[i] = constant(node, i + 1);
      if (!given[i].defined() || given[i].dim() != 1 || given[i].numel() != layer->weight.size(0))
        return false;
    }
    const auto& [gain, shift, mean, variance] = given;
    const at::Tensor factors =
        (gain.to(at::kDouble) * at::rsqrt(variance.to(at::kDouble) + node.get("epsilon", 1e-5)))
            .to(at::kFloat);
    const at::Tensor summands = shift - mean * factors;
    const bool is_image = !layer->is_linear;
    const auto form = [&](const at::Tensor& t) { return is_image ? t.reshape({-1, 1, 1}) : t; };
    return scale(layer, form(factors), form(summands));
  }

  OnnxGraph graph_;
  std::map<std::string, int64_t> num_uses_;
  std::vector<std::optional<Step>> steps_;
  std::map<std::string, size_t> layers_;  // steps, by their outputs
  struct Scales {
    at::Tensor values;
    int64_t axis = 0;
  };
  std::map<std::string, Scales> scales_;        // of dequantized constants
  std::map<std::string, Rounding> bytes_;       // of rounded values
  std::map<std::string, std::string> rounded_;  // bytes, by the values that they are dequantized to
};

}  // namespace

FusedGraph fused(OnnxGraph graph) { return Fuser(std::move(graph)).run(); }

}  // namespace lockstep::infer
