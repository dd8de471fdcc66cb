#include "infer/sparse/fusion.h"

#include <algorithm>
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
// has been computed too.
namespace lockstep::infer {
namespace {

class Fuser {
 public:
  explicit Fuser(OnnxGraph graph) : graph_(std::move(graph)) {}

  FusedGraph run() {
    const at::NoGradGuard no_grad;
    drop_identities();
    for (const OnnxNode& node : graph_.nodes)
      for (const std::string& input : node.inputs) ++num_uses_[input];
    for (const OnnxValue& output : graph_.outputs) ++num_uses_[output.name];
    for (OnnxNode& node : graph_.nodes) add(std::move(node));
    FusedGraph fused{.constants = std::move(graph_.constants),
                     .inputs = std::move(graph_.inputs),
                     .outputs = std::move(graph_.outputs)};
    for (auto& step : steps_)
      if (step) fused.steps.push_back(*std::move(step));
    keep_used(&fused);
    return fused;
  }

 private:
  /// Replaces the outputs of operators that do nothing by their inputs.
  void drop_identities() {
    std::map<std::string, std::string> same;
    const auto replace = [&](std::string* name) {
      if (const auto found = same.find(*name); found != same.end()) *name = found->second;
    };
    for (OnnxNode& node : graph_.nodes) {
      for (std::string& input : node.inputs) replace(&input);
      const bool does_nothing = node.op == "Identity" || node.op == "Dropout";
      if (does_nothing && !node.inputs.empty()) same[node.outputs[0]] = node.inputs[0];
    }
    std::erase_if(graph_.nodes,
                  [&](const OnnxNode& node) { return same.contains(node.outputs[0]); });
    for (OnnxValue& output : graph_.outputs) replace(&output.name);
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
    if (fold(node) || fuse(node)) return;
    if (auto layer = layer_of(node)) {
      node.inputs = {node.inputs[0]};
      layer->name = node.name.empty() ? node.outputs[0] : node.name;
      push({std::move(node), std::move(layer)});
      return;
    }
    if (!knows_onnx_operator(node.op))
      throw Error(
          ExitCode::kUsage, "infer",
          fmt::format("node '{}': the ONNX operator {} is not supported; run this file with "
                      "onnxruntime",
                      node.name, node.op));
    push({std::move(node), std::nullopt});
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
    for (size_t i = 0; i < std::min(outputs.size(), node.outputs.size()); ++i)
      graph_.constants[node.outputs[i]] = outputs[i];
    return true;
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
    const auto found = layers_.find(node.inputs.at(0));
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
      const auto found = layers_.find(node.inputs[i]);
      if (found == layers_.end() || num_uses_[node.inputs[i]] != 1) continue;
      Step& step = *steps_[found->second];
      if (!fuse_into(&step, node, i)) continue;
      Step moved = std::move(step);
      steps_[found->second].reset();
      layers_.erase(found);
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
    if (layer.clamps() || layer.takes_max) return false;
    if (node.op == "Add") {
      const at::Tensor other = constant(node, 1 - input);
      if (other.defined()) return scale(&layer, {}, other);
      if (layer.adds_residual) return false;
      layer.adds_residual = true;
      step->node.inputs.push_back(node.inputs[1 - input]);
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
};

}  // namespace

FusedGraph fused(OnnxGraph graph) { return Fuser(std::move(graph)).run(); }

}  // namespace lockstep::infer
