#include "infer/exports/formats.h"

#include <bit>
#include <cmath>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "base/error.h"
#include "daemon/config/program.h"
#include "infer/exports/onnx.pb.h"

// Writes ONNX files with protobuf. The graph is built layer by layer: each layer becomes one or a
// few nodes, whose output is the next layer's input.
namespace lockstep::exports {
namespace {

using model::LayerKind;
using model::NetworkLayer;
namespace pb = lockstep::onnx::pb;

static_assert(std::endian::native == std::endian::little,
              "values are written in native byte order");

constexpr int64_t kFileVersion = 7;  // belongs to operator set 13
// Values of TensorProto.DataType.
constexpr int32_t kFloat32 = 1;
constexpr int32_t kUint8 = 2;
constexpr int32_t kInt8 = 3;
// protobuf limits a message to 2 GiB; the rest is for names and the graph.
constexpr int64_t kMaxTensorBytes = (int64_t{1} << 31) - (int64_t{1} << 20);

pb::Attribute* add_attribute(const char* name, pb::Attribute::Type type, pb::Node* node) {
  pb::Attribute* attribute = node->add_attribute();
  attribute->set_name(name);
  attribute->set_type(type);
  return attribute;
}

void add_ints(const char* name, const std::vector<int64_t>& values, pb::Node* node) {
  pb::Attribute* attribute = add_attribute(name, pb::Attribute::INTS, node);
  for (const int64_t value : values) attribute->add_ints(value);
}

void add_int(const char* name, int64_t value, pb::Node* node) {
  add_attribute(name, pb::Attribute::INT, node)->set_i(value);
}

void add_float(const char* name, double value, pb::Node* node) {
  add_attribute(name, pb::Attribute::FLOAT, node)->set_f(static_cast<float>(value));
}

int32_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kFloat32;
    case at::kByte:
      return kUint8;
    case at::kChar:
      return kInt8;
    default:
      throw Error(ExitCode::kBug, "export", "no ONNX type for a network's tensor");
  }
}

/// Builder of the graph, layer by layer. `value_` names the output of the last layer.
class GraphWriter {
 public:
  GraphWriter(const PortableNetwork& network, bool int8_weights, pb::Graph* graph)
      : network_(network), int8_weights_(int8_weights), graph_(*graph) {}

  void write() {
    graph_.set_name("lockstep");
    declare("inputs", network_.input_shape, graph_.add_input());
    for (const auto& [name, tensor] : network_.tensors) add_values(name, tensor);
    if (int8_weights_)
      for (const auto& [layer, by] : network_.quantized)
        replace_values(layer + ".weight", by.int8_weight);
    for (size_t i = 0; i < network_.layers.size(); ++i) add_layer(i);
    // The last node's output is the graph's, so it gets the public name.
    graph_.mutable_node(graph_.node_size() - 1)->set_output(0, "logits");
    declare("logits", {network_.num_classes}, graph_.add_output());
  }

 private:
  static void declare(const char* name, const std::vector<int64_t>& shape, pb::ValueInfo* value) {
    value->set_name(name);
    auto* type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(kFloat32);
    type->mutable_shape()->add_dim()->set_dim_param("batch");
    for (const int64_t extent : shape) type->mutable_shape()->add_dim()->set_dim_value(extent);
  }

  static void fill(const at::Tensor& values, pb::Tensor* tensor) {
    const at::Tensor whole = values.contiguous();
    tensor->set_data_type(type_of(whole));
    tensor->set_raw_data(whole.const_data_ptr(), whole.nbytes());
  }

  std::string add_values(const std::string& name, const at::Tensor& values) {
    pb::Tensor* tensor = graph_.add_initializer();
    tensor->set_name(name);
    for (const int64_t extent : values.sizes()) tensor->add_dims(extent);
    fill(values, tensor);
    return name;
  }

  void replace_values(const std::string& name, const at::Tensor& values) {
    for (pb::Tensor& tensor : *graph_.mutable_initializer())
      if (tensor.name() == name) fill(values, &tensor);
  }

  /// Adds a scalar that several nodes may share.
  std::string constant(const std::string& name, float value) {
    for (const pb::Tensor& known : graph_.initializer())
      if (known.name() == name) return name;
    return add_values(name, at::scalar_tensor(value, at::kFloat));
  }

  pb::Node* add_node(const char* op_type, const std::vector<std::string>& inputs) {
    pb::Node* node = graph_.add_node();
    node->set_op_type(op_type);
    node->set_name(fmt::format("{}_{}", op_type, graph_.node_size()));
    for (const std::string& input : inputs) node->add_input(input);
    value_ = fmt::format("value_{}", graph_.node_size());
    node->add_output(value_);
    return node;
  }

  void add_layer(size_t i) {
    const NetworkLayer& layer = network_.layers[i];
    switch (layer.kind) {
      case LayerKind::kFlatten:
        return add_int("axis", 1, add_node("Flatten", {value_}));
      case LayerKind::kLinear:
        return add_int("transB", 1, add_node("Gemm", rounded(layer)));
      case LayerKind::kConv2d:
        return add_convolution(layer);
      case LayerKind::kBatchNorm:
        return add_float("epsilon", layer.epsilon,
                         add_node("BatchNormalization", with_tensors(layer)));
      case LayerKind::kMaxPool2d:
        return add_pooling(layer);
      case LayerKind::kGlobalAveragePool:
        return void(add_node("GlobalAveragePool", {value_}));
      case LayerKind::kChannelsFirst:
        return add_ints("perm", {0, 3, 1, 2}, add_node("Transpose", {value_}));
      case LayerKind::kRelu:
        return void(add_node("Relu", {value_}));
      case LayerKind::kGelu:
        return add_gelu();
      case LayerKind::kTanh:
        return void(add_node("Tanh", {value_}));
      case LayerKind::kOther:
        break;
    }
    refuse_layer(network_.layers, i, "ONNX");
  }

  /// Returns the last value and the layer's tensors. ONNX has the same order of tensors.
  std::vector<std::string> with_tensors(const NetworkLayer& layer) const {
    std::vector<std::string> inputs = model::tensor_names(layer);
    inputs.insert(inputs.begin(), value_);
    return inputs;
  }

  /// Returns the same for a layer with a weight. If the layer is quantized, input and weight are
  /// rounded first.
  std::vector<std::string> rounded(const NetworkLayer& layer) {
    const auto found = network_.quantized.find(layer.name);
    if (found == network_.quantized.end()) return with_tensors(layer);
    const QuantizedLayer& by = found->second;
    if (by.rounds_inputs()) {
      const std::string scale = add_values(layer.name + ".input_scale", by.input_scale);
      const std::string zero = add_values(layer.name + ".input_zero_point", by.input_zero_point);
      add_node("QuantizeLinear", {value_, scale, zero});
      add_node("DequantizeLinear", {value_, scale, zero});
    }
    std::vector<std::string> inputs = with_tensors(layer);
    inputs[1] = rounded_weight(layer, by);
    return inputs;
  }

  std::string rounded_weight(const NetworkLayer& layer, const QuantizedLayer& by) {
    const bool per_output = by.is_per_output();  // otherwise the two are scalars
    const auto form = [&](const at::Tensor& t) { return per_output ? t : t.reshape({}); };
    const std::string scale = add_values(layer.name + ".weight_scale", form(by.weight_scale));
    const std::string zero =
        add_values(layer.name + ".weight_zero_point", form(by.weight_zero_point));
    // add_node() changes value_, which must stay the layer's input.
    const std::string input = value_;
    std::string weight = layer.name + ".weight";
    for (const char* step : {"QuantizeLinear", "DequantizeLinear"}) {
      if (int8_weights_ && step[0] == 'Q') continue;  // already stored as int8
      pb::Node* node = add_node(step, {weight, scale, zero});
      if (per_output) add_int("axis", 0, node);
      weight = value_;
    }
    // The weight's nodes must not change the flow of the layer's input.
    value_ = input;
    return weight;
  }

  void add_convolution(const NetworkLayer& layer) {
    pb::Node* node = add_node("Conv", rounded(layer));
    const int64_t k = layer.kernel_extent, s = layer.stride, p = layer.padding;
    add_ints("kernel_shape", {k, k}, node);
    add_ints("strides", {s, s}, node);
    add_ints("pads", {p, p, p, p}, node);
    if (layer.groups > 1) add_int("group", layer.groups, node);
  }

  void add_pooling(const NetworkLayer& layer) {
    pb::Node* node = add_node("MaxPool", {value_});
    add_ints("kernel_shape", {layer.kernel_extent, layer.kernel_extent}, node);
    add_ints("strides", {layer.stride, layer.stride}, node);
  }

  /// Computes x (1 + erf(x / sqrt(2))) / 2: operator set 13 has no GELU.
  void add_gelu() {
    const std::string x = value_;
    add_node("Mul", {x, constant("gelu_inverse_sqrt_2", static_cast<float>(std::sqrt(0.5)))});
    add_node("Erf", {value_});
    add_node("Add", {value_, constant("gelu_one", 1)});
    add_node("Mul", {x, value_});
    add_node("Mul", {value_, constant("gelu_half", 0.5)});
  }

  const PortableNetwork& network_;
  const bool int8_weights_;
  pb::Graph& graph_;
  std::string value_ = "inputs";
};

/// Throws Error if the tensors do not fit into one file.
void require_room(const PortableNetwork& network) {
  int64_t num_bytes = 0;
  for (const auto& [name, tensor] : network.tensors) {
    check(tensor.scalar_type() == at::kFloat, "a network's tensors are float32: " + name);
    num_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  if (num_bytes > kMaxTensorBytes)
    throw Error(ExitCode::kUsage, "export",
                fmt::format("an ONNX file holds at most 2 GiB, these tensors have {} bytes: use "
                            "--format torchscript or safetensors",
                            num_bytes));
}

}  // namespace

std::string onnx_bytes(const PortableNetwork& network, bool int8_weights) {
  require_room(network);
  pb::Model model;
  model.set_ir_version(kFileVersion);
  model.set_producer_name("lockstep");
  model.set_producer_version(daemon::version_facts().version);
  pb::OperatorSet* operators = model.add_opset_import();
  operators->set_domain("");
  operators->set_version(kOnnxOperatorSet);
  for (const auto& [name, text] : network.facts) {
    pb::Entry* entry = model.add_metadata_props();
    entry->set_key(name);
    entry->set_value(text);
  }
  GraphWriter(network, int8_weights, model.mutable_graph()).write();
  std::string bytes;
  check(model.SerializeToString(&bytes), "an ONNX file cannot be put together");
  return bytes;
}

}  // namespace lockstep::exports
