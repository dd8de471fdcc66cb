#include "infer/exports/formats.h"

#include <cctype>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "base/error.h"
#include "recal/quantization/int8_rounding.h"

// Generates TorchScript source for the layers and compiles it in this process. The parameters are
// registered in nested modules, so that their names match the model's.
namespace lockstep::exports {
namespace {

using model::LayerKind;

/// Splits a name: blocks.0.conv.weight -> blocks, 0, conv, weight.
std::vector<std::string> names_in(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char letter : name) {
    if (letter == '.') {
      parts.emplace_back();
      continue;
    }
    check(std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_',
          "a tensor's name has letters, digits, _ and dots: " + name);
    parts.back().push_back(letter);
  }
  return parts;
}

/// Returns the source text of a tensor. A number cannot be an attribute after a dot, so it needs
/// getattr().
std::string expression(const std::string& name) {
  std::string text = "self";
  for (const std::string& part : names_in(name))
    text = std::isdigit(static_cast<unsigned char>(part.front())) != 0
               ? fmt::format("getattr({}, \"{}\")", text, part)
               : fmt::format("{}.{}", text, part);
  return text;
}

/// Returns the input `x`, rounded if the layer is quantized. ATen's own operators give the same
/// bits as training.
std::string rounded_input(const std::string& x, const QuantizedLayer* by) {
  if (by == nullptr || !by->rounds_inputs()) return x;
  // '#' keeps the decimal point of a whole number; TorchScript would otherwise read an integer.
  return fmt::format("torch.fake_quantize_per_tensor_affine({}, {:#.17g}, {}, 0, {})", x,
                     by->input_scale.item<float>(), by->input_zero_point.item<int64_t>(),
                     recal::kInputQuantMax);
}

std::string rounded_weight(const std::string& layer, const std::string& name,
                           const QuantizedLayer* by) {
  const std::string weight = expression(name);
  if (by == nullptr) return weight;
  const std::string scale = expression(layer + ".weight_scale"),
                    zero = expression(layer + ".weight_zero_point");
  return by->is_per_output()
             ? fmt::format("torch.fake_quantize_per_channel_affine({}, {}, {}, 0, -{max}, {max})",
                           weight, scale, zero, fmt::arg("max", recal::kWeightQuantMax))
             : fmt::format("torch.fake_quantize_per_tensor_affine({}, {}, {}, -{max}, {max})",
                           weight, scale, zero, fmt::arg("max", recal::kWeightQuantMax));
}

constexpr const char* kAttention = R"(
def lockstep_attention(self, qkv: Tensor, heads: int, width: int, causal: bool) -> Tensor:
    parts = qkv.view([qkv.size(0), qkv.size(1), 3, heads, width]).transpose(1, 3)
    q, k, v = parts.select(2, 0), parts.select(2, 1), parts.select(2, 2)
    sums = torch.scaled_dot_product_attention(q, k, v, None, 0.0, causal)
    return sums.transpose(1, 2).reshape([qkv.size(0), qkv.size(1), heads * width])
)";

/// Returns the variable of a layer's output, or of the network's input.
std::string variable(int64_t layer) {
  return layer == model::kNetworkInput ? "inputs" : fmt::format("x{}", layer);
}

/// Returns the expression of a linear layer or convolution.
std::string product_of(const PortableNetwork& network, const model::NetworkLayer& layer,
                       const std::string& x) {
  const std::vector<std::string> tensors = model::tensor_names(layer);
  const std::string bias = tensors.size() > 1 ? expression(tensors[1]) : "None";
  const auto found = network.quantized.find(layer.name);
  const QuantizedLayer* by = found == network.quantized.end() ? nullptr : &found->second;
  const std::string arguments = fmt::format("{}, {}, {}", rounded_input(x, by),
                                            rounded_weight(layer.name, tensors[0], by), bias);
  if (layer.kind == LayerKind::kLinear) return fmt::format("torch.linear({})", arguments);
  return fmt::format("torch.conv2d({}, [{s}, {s}], [{p}, {p}], [1, 1], {})", arguments,
                     layer.groups, fmt::arg("s", layer.stride), fmt::arg("p", layer.padding));
}

/// Returns the expression of a normalisation.
std::string normalised(const PortableNetwork& network, const model::NetworkLayer& layer,
                       const std::string& x) {
  const std::vector<std::string> tensors = model::tensor_names(layer);
  if (layer.kind == LayerKind::kBatchNorm)
    return fmt::format("torch.batch_norm({}, {}, {}, {}, {}, False, 0.0, {:.17g}, False)", x,
                       expression(tensors[0]), expression(tensors[1]), expression(tensors[2]),
                       expression(tensors[3]), layer.epsilon);
  return fmt::format("torch.layer_norm({}, [{}], {}, {}, {:.17g})", x,
                     network.tensors.at(tensors[0]).numel(), expression(tensors[0]),
                     layer.has_bias ? expression(tensors[1]) : "None", layer.epsilon);
}

/// Returns the expression of one layer without tensors, or with one; empty for unknown kinds.
std::string call_of(const model::NetworkLayer& layer, const std::string& x) {
  const int64_t k = layer.kernel_extent, s = layer.stride, p = layer.padding;
  const std::vector<std::string> tensors = model::tensor_names(layer);
  const std::string tensor = tensors.size() == 1 ? expression(tensors[0]) : "";
  switch (layer.kind) {
    case LayerKind::kFlatten:
      return fmt::format("torch.flatten({}, 1)", x);
    case LayerKind::kMaxPool2d:
      return fmt::format("torch.max_pool2d({}, [{k}, {k}], [{s}, {s}], [{p}, {p}])", x,
                         fmt::arg("k", k), fmt::arg("s", s), fmt::arg("p", p));
    case LayerKind::kAdaptiveAveragePool2d:
      return fmt::format("torch.adaptive_avg_pool2d({}, [{}, {}])", x, k, k);
    case LayerKind::kGlobalAveragePool:
      return fmt::format("torch.mean({}, [2, 3], True)", x);
    case LayerKind::kChannelsFirst:
      return fmt::format("torch.permute({}, [0, 3, 1, 2])", x);
    case LayerKind::kRelu:
    case LayerKind::kGelu:
    case LayerKind::kTanh:
      return fmt::format("torch.{}({})", model::kind_name(layer.kind), x);
    case LayerKind::kAttention:
      return fmt::format("self.lockstep_attention({}, {}, {}, {})", x, layer.num_heads,
                         layer.head_width, layer.is_causal ? "True" : "False");
    case LayerKind::kEmbedding:
      return fmt::format("torch.embedding({}, {})", tensor, x);
    case LayerKind::kPatches:
      return fmt::format("torch.transpose(torch.flatten({}, 2), 1, 2)", x);
    case LayerKind::kPrepend:
      return fmt::format("torch.cat([{}.expand([{x}.size(0), -1, -1]), {x}], 1)", tensor,
                         fmt::arg("x", x));
    case LayerKind::kAddPositions:
      return fmt::format("torch.add({x}, torch.narrow({}, -2, 0, {x}.size(1)))", tensor,
                         fmt::arg("x", x));
    case LayerKind::kFirstToken:
      return fmt::format("torch.select({}, 1, 0)", x);
    default:
      return "";
  }
}

/// Returns the expression of layer i.
std::string expression_of(const PortableNetwork& network, size_t i) {
  const model::NetworkLayer& layer = network.layers[i];
  const std::vector<int64_t> inputs = model::inputs_of(network.layers, i);
  const std::string x = variable(inputs.front());
  switch (layer.kind) {
    case LayerKind::kLinear:
    case LayerKind::kConv2d:
      return product_of(network, layer, x);
    case LayerKind::kBatchNorm:
    case LayerKind::kLayerNorm:
      return normalised(network, layer, x);
    case LayerKind::kAdd:
      return fmt::format("torch.add({}, {})", x, variable(inputs.back()));
    default:
      if (std::string call = call_of(layer, x); !call.empty()) return call;
      refuse_layer(network.layers, i, "TorchScript");
  }
}

/// Modules inside modules, according to the dots in the tensors' names.
class ModuleTree {
 public:
  ModuleTree() : root_(new_module("Network")) {}

  void add(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    const std::vector<std::string> parts = names_in(name);
    torch::jit::Module at = root_;
    std::string path;
    for (size_t i = 0; i + 1 < parts.size(); ++i) at = child(at, parts[i], &path);
    at.register_parameter(parts.back(), tensor, is_buffer);
  }
  torch::jit::Module& root() { return root_; }

 private:
  torch::jit::Module new_module(const std::string& class_name) {
    // All parts have the same class name, so the compiler must make the names unique.
    torch::jit::Module module("__torch__.lockstep." + class_name, unit_, /*shouldMangle=*/true);
    module.register_attribute("training", c10::BoolType::get(), false);
    return module;
  }

  torch::jit::Module child(torch::jit::Module& parent, const std::string& name, std::string* path) {
    *path += "." + name;
    const auto found = children_.find(*path);
    if (found != children_.end()) return found->second;
    torch::jit::Module made = new_module("Part");
    parent.register_module(name, made);
    return children_.emplace(*path, made).first->second;
  }

  std::shared_ptr<torch::jit::CompilationUnit> unit_ =
      std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module root_;
  std::map<std::string, torch::jit::Module> children_;
};

}  // namespace

std::string torchscript_source(const PortableNetwork& network) {
  std::string source = "def forward(self, inputs: Tensor) -> Tensor:\n";
  bool has_attention = false;
  for (size_t i = 0; i < network.layers.size(); ++i) {
    source += fmt::format("    x{} = {}\n", i, expression_of(network, i));
    has_attention |= network.layers[i].kind == LayerKind::kAttention;
  }
  source += fmt::format("    return x{}\n", network.layers.size() - 1);
  return has_attention ? kAttention + source : source;
}

std::string torchscript_bytes(const PortableNetwork& network) {
  const std::string source = torchscript_source(network);
  ModuleTree tree;
  std::set<std::string> added;  // layers may share a tensor
  for (const model::NetworkLayer& layer : network.layers) {
    const std::vector<std::string> names = model::tensor_names(layer);
    for (size_t i = 0; i < names.size(); ++i)  // the third and fourth are moving statistics
      if (added.insert(names[i]).second)
        tree.add(names[i], network.tensors.at(names[i]), /*is_buffer=*/i >= 2);
  }
  for (const auto& [layer, by] : network.quantized) {
    tree.add(layer + ".weight_scale", by.weight_scale, true);
    tree.add(layer + ".weight_zero_point", by.weight_zero_point.to(at::kInt), true);
  }
  tree.root().define(source);
  // Extra files are readable without running the model.
  torch::jit::ExtraFilesMap extra;
  for (const auto& [name, text] : network.facts) extra[name] = text;
  std::ostringstream bytes;
  tree.root().save(bytes, extra);
  return std::move(bytes).str();
}

}  // namespace lockstep::exports
