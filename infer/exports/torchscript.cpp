#include "infer/exports/formats.h"

#include <cctype>
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

/// Returns `x`, rounded if the layer is quantized. ATen's own operators give the same bits as
/// training.
std::string rounded_input(const QuantizedLayer* by) {
  if (by == nullptr || !by->rounds_inputs()) return "x";
  // '#' keeps the decimal point of a whole number; TorchScript would otherwise read an integer.
  return fmt::format("torch.fake_quantize_per_tensor_affine(x, {:#.17g}, {}, 0, {})",
                     by->input_scale.item<float>(), by->input_zero_point.item<int64_t>(),
                     recal::kInputQuantMax);
}

std::string rounded_weight(const std::string& layer, const QuantizedLayer* by) {
  const std::string weight = expression(layer + ".weight");
  if (by == nullptr) return weight;
  const std::string scale = expression(layer + ".weight_scale"),
                    zero = expression(layer + ".weight_zero_point");
  return by->is_per_output()
             ? fmt::format("torch.fake_quantize_per_channel_affine({}, {}, {}, 0, -{max}, {max})",
                           weight, scale, zero, fmt::arg("max", recal::kWeightQuantMax))
             : fmt::format("torch.fake_quantize_per_tensor_affine({}, {}, {}, -{max}, {max})",
                           weight, scale, zero, fmt::arg("max", recal::kWeightQuantMax));
}

/// Returns the expression of one layer. `x` is its input.
std::string call_of(const PortableNetwork& network, size_t i) {
  const model::Network& layers = network.layers;
  const model::NetworkLayer& layer = layers[i];
  const std::vector<std::string> tensors = model::tensor_names(layer);
  const std::string bias = tensors.size() > 1 ? expression(tensors[1]) : "None";
  const auto found = network.quantized.find(layer.name);
  const QuantizedLayer* by = found == network.quantized.end() ? nullptr : &found->second;
  switch (layer.kind) {
    case LayerKind::kFlatten:
      return "torch.flatten(x, 1)";
    case LayerKind::kLinear:
      return fmt::format("torch.linear({}, {}, {})", rounded_input(by),
                         rounded_weight(layer.name, by), bias);
    case LayerKind::kConv2d:
      return fmt::format("torch.conv2d({}, {}, {}, [{s}, {s}], [{p}, {p}], [1, 1], {})",
                         rounded_input(by), rounded_weight(layer.name, by), bias, layer.groups,
                         fmt::arg("s", layer.stride), fmt::arg("p", layer.padding));
    case LayerKind::kBatchNorm:
      return fmt::format("torch.batch_norm(x, {}, {}, {}, {}, False, 0.0, {:.17g}, False)",
                         expression(tensors[0]), expression(tensors[1]), expression(tensors[2]),
                         expression(tensors[3]), layer.epsilon);
    case LayerKind::kMaxPool2d:
      return fmt::format("torch.max_pool2d(x, [{k}, {k}], [{s}, {s}])",
                         fmt::arg("k", layer.kernel_extent), fmt::arg("s", layer.stride));
    case LayerKind::kGlobalAveragePool:
      return "torch.mean(x, [2, 3], True)";
    case LayerKind::kChannelsFirst:
      return "torch.permute(x, [0, 3, 1, 2])";
    case LayerKind::kRelu:
      return "torch.relu(x)";
    case LayerKind::kGelu:
      return "torch.gelu(x)";
    case LayerKind::kTanh:
      return "torch.tanh(x)";
    case LayerKind::kOther:
      break;
  }
  refuse_layer(layers, i, "TorchScript");
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
  std::string source = "def forward(self, inputs: Tensor) -> Tensor:\n    x = inputs\n";
  for (size_t i = 0; i < network.layers.size(); ++i)
    source += fmt::format("    x = {}\n", call_of(network, i));
  return source + "    return x\n";
}

std::string torchscript_bytes(const PortableNetwork& network) {
  const std::string source = torchscript_source(network);
  ModuleTree tree;
  for (const model::NetworkLayer& layer : network.layers) {
    const std::vector<std::string> names = model::tensor_names(layer);
    for (size_t i = 0; i < names.size(); ++i)  // the third and fourth are moving statistics
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
