#include "infer/exports/formats.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include <ATen/ops/kron.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "daemon/config/program.h"
#include "infer/onnx.pb.h"

// Writes ONNX files with protobuf. The graph is built layer by layer: each layer becomes one or a
// few nodes, whose last output is the layer's.
namespace lockstep::exports {
namespace {

using model::LayerKind;
using model::NetworkLayer;
namespace pb = lockstep::onnx::pb;

static_assert(std::endian::native == std::endian::little,
              "values are written in native byte order");

constexpr int64_t kFileVersion = 8;  // belongs to operator set 17
// Values of TensorProto.DataType.
constexpr int32_t kFloat32 = 1;
constexpr int32_t kUint8 = 2;
constexpr int32_t kInt8 = 3;
constexpr int32_t kInt64 = 7;
constexpr int64_t kAnyTokens = -1;  // in a shape
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
    case at::kLong:
      return kInt64;
    default:
      throw Error(ExitCode::kBug, "export", "no ONNX type for a network's tensor");
  }
}

/// Means of `num_means` equal parts of `extent` elements, as a matrix [extent, num_means]. Parts
/// overlap where the extent is not a multiple, as in at::adaptive_avg_pool2d.
at::Tensor means_of_parts(int64_t extent, int64_t num_means) {
  const at::Tensor means = at::zeros({extent, num_means});
  for (int64_t i = 0; i < num_means; ++i) {
    const int64_t begin = i * extent / num_means,
                  end = ((i + 1) * extent + num_means - 1) / num_means;
    means.select(1, i).slice(0, begin, end).fill_(1.0 / static_cast<double>(end - begin));
  }
  return means;
}

/// Builder of the graph, layer by layer. `value_` names the output of the last node, and while a
/// layer is added at first its input.
class GraphWriter {
 public:
  GraphWriter(const PortableNetwork& network, bool int8_weights, pb::Graph* graph)
      : network_(network), int8_weights_(int8_weights), graph_(*graph) {}

  void write() {
    graph_.set_name("lockstep");
    const bool takes_tokens = model::takes_tokens(network_.layers);
    declare("inputs", takes_tokens ? kInt64 : kFloat32,
            takes_tokens ? std::vector<int64_t>{kAnyTokens} : network_.input_shape,
            graph_.add_input());
    for (const auto& [name, tensor] : network_.tensors) add_values(name, tensor);
    if (int8_weights_)
      for (const auto& [layer, by] : network_.quantized)
        replace_values(layer + ".weight", by.int8_weight);
    for (size_t i = 0; i < network_.layers.size(); ++i) add_layer(i);
    // The last node's output is the graph's, so it gets the public name.
    graph_.mutable_node(graph_.node_size() - 1)->set_output(0, "logits");
    std::vector<int64_t> shape = {network_.num_classes};
    if (outputs_.back().num_dims > 2) shape.insert(shape.begin(), kAnyTokens);
    declare("logits", kFloat32, shape, graph_.add_output());
  }

 private:
  struct Output {
    std::string name;
    size_t num_dims = 0;
  };

  static void declare(const char* name, int32_t element, const std::vector<int64_t>& shape,
                      pb::ValueInfo* value) {
    value->set_name(name);
    auto* type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(element);
    type->mutable_shape()->add_dim()->set_dim_param("batch");
    for (const int64_t extent : shape) {
      auto* dim = type->mutable_shape()->add_dim();
      if (extent == kAnyTokens)
        dim->set_dim_param("tokens");
      else
        dim->set_dim_value(extent);
    }
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

  /// Adds values that several nodes may share.
  std::string constant(const std::string& name, const at::Tensor& values) {
    const std::string full = "constant." + name;
    return constants_.insert(full).second ? add_values(full, values) : full;
  }
  std::string constant(const std::string& name, double value) {
    return constant(name, at::scalar_tensor(value, at::kFloat));
  }
  /// Adds numbers such as a shape, named after themselves.
  std::string numbers(const std::vector<int64_t>& values) {
    return constant(fmt::format("ints_{}", fmt::join(values, "_")), at::tensor(values, at::kLong));
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
    std::vector<Output> inputs;
    for (const int64_t from : model::inputs_of(network_.layers, i))
      inputs.push_back(from == model::kNetworkInput ? network_input()
                                                    : outputs_[static_cast<size_t>(from)]);
    value_ = inputs.front().name;
    size_t num_dims = inputs.front().num_dims;
    if (layer.kind == LayerKind::kAdd)
      add_node("Add", {value_, inputs.back().name});
    else if (layer.kind == LayerKind::kLinear && num_dims > 2)
      add_linear_of_tokens(layer);
    else if (!add_plain(layer) && !add_of_tokens(layer))
      refuse_layer(network_.layers, i, "ONNX");
    if (layer.kind == LayerKind::kFlatten || layer.kind == LayerKind::kFirstToken) num_dims = 2;
    if (layer.kind == LayerKind::kEmbedding || layer.kind == LayerKind::kPatches) num_dims = 3;
    outputs_.push_back({value_, num_dims});
  }

  Output network_input() const { return {"inputs", 1 + network_.input_shape.size()}; }

  /// Adds a layer of images or of one vector a sample. Returns false for other kinds.
  bool add_plain(const NetworkLayer& layer) {
    switch (layer.kind) {
      case LayerKind::kFlatten:
        add_int("axis", 1, add_node("Flatten", {value_}));
        return true;
      case LayerKind::kLinear:
        add_int("transB", 1, add_node("Gemm", rounded(layer)));
        return true;
      case LayerKind::kConv2d:
        add_convolution(layer);
        return true;
      case LayerKind::kBatchNorm:
        add_float("epsilon", layer.epsilon, add_node("BatchNormalization", with_tensors(layer)));
        return true;
      case LayerKind::kMaxPool2d:
        add_pooling(layer);
        return true;
      case LayerKind::kAdaptiveAveragePool2d:
        add_adaptive_pooling(layer);
        return true;
      case LayerKind::kGlobalAveragePool:
        add_node("GlobalAveragePool", {value_});
        return true;
      case LayerKind::kChannelsFirst:
        add_ints("perm", {0, 3, 1, 2}, add_node("Transpose", {value_}));
        return true;
      case LayerKind::kRelu:
        add_node("Relu", {value_});
        return true;
      case LayerKind::kGelu:
        add_gelu();
        return true;
      case LayerKind::kTanh:
        add_node("Tanh", {value_});
        return true;
      default:
        return false;
    }
  }

  /// Adds a layer of tokens. Returns false for other kinds.
  bool add_of_tokens(const NetworkLayer& layer) {
    switch (layer.kind) {
      case LayerKind::kLayerNorm:
        add_float("epsilon", layer.epsilon, add_node("LayerNormalization", with_tensors(layer)));
        return true;
      case LayerKind::kAttention:
        add_attention(layer);
        return true;
      case LayerKind::kEmbedding:
        add_node("Gather", {layer.name + ".weight", value_});
        return true;
      case LayerKind::kPatches:
        add_node("Reshape", {value_, numbers({0, 0, layer.image[0] * layer.image[1]})});
        add_ints("perm", {0, 2, 1}, add_node("Transpose", {value_}));
        return true;
      case LayerKind::kPrepend:
        add_first_token(layer);
        return true;
      case LayerKind::kAddPositions:
        add_positions(layer);
        return true;
      case LayerKind::kFirstToken:
        add_int("axis", 1,
                add_node("Gather", {value_, constant("first", at::zeros({}, at::kLong))}));
        return true;
      default:
        return false;
    }
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
    const int64_t p = layer.padding;
    pb::Node* node = add_node("MaxPool", {value_});
    add_ints("kernel_shape", {layer.kernel_extent, layer.kernel_extent}, node);
    add_ints("strides", {layer.stride, layer.stride}, node);
    if (p > 0) add_ints("pads", {p, p, p, p}, node);
  }

  /// Multiplies each channel by the means of its parts: ONNX has no adaptive pooling.
  void add_adaptive_pooling(const NetworkLayer& layer) {
    const auto [rows, columns] = layer.image;
    const int64_t parts = layer.kernel_extent;
    const std::string means =
        constant(fmt::format("means_{}_of_{}_{}", parts, rows, columns),
                 at::kron(means_of_parts(rows, parts), means_of_parts(columns, parts)));
    add_node("Reshape", {value_, numbers({0, 0, rows * columns})});
    add_node("MatMul", {value_, means});
    add_node("Reshape", {value_, numbers({0, 0, parts, parts})});
  }

  /// Computes x (1 + erf(x / sqrt(2))) / 2: operator set 17 has no GELU.
  void add_gelu() {
    const std::string x = value_;
    add_node("Mul", {x, constant("gelu_inverse_sqrt_2", std::sqrt(0.5))});
    add_node("Erf", {value_});
    add_node("Add", {value_, constant("gelu_one", 1)});
    add_node("Mul", {x, value_});
    add_node("Mul", {value_, constant("gelu_half", 0.5)});
  }

  /// Gemm takes matrices only. Runtimes transpose the constant weight once.
  void add_linear_of_tokens(const NetworkLayer& layer) {
    const std::vector<std::string> inputs = rounded(layer);
    add_ints("perm", {1, 0}, add_node("Transpose", {inputs[1]}));
    add_node("MatMul", {inputs[0], value_});
    if (layer.has_bias) add_node("Add", {value_, inputs[2]});
  }

  /// Extents `begin` to `end` of the value's shape, as a vector.
  std::string shape_of(const std::string& value, int64_t begin, int64_t end) {
    pb::Node* node = add_node("Shape", {value});
    add_int("start", begin, node);
    add_int("end", end, node);
    return value_;
  }

  void add_first_token(const NetworkLayer& layer) {
    const std::string tokens = value_;
    const int64_t width = network_.tensors.at(layer.name).size(-1);
    pb::Node* shape = add_node("Concat", {shape_of(tokens, 0, 1), numbers({1, width})});
    add_int("axis", 0, shape);
    add_node("Expand", {layer.name, value_});
    add_int("axis", 1, add_node("Concat", {value_, tokens}));
  }

  void add_positions(const NetworkLayer& layer) {
    const std::string tokens = value_;
    std::string positions = layer.name;
    if (model::takes_tokens(network_.layers)) {  // perhaps fewer tokens than positions
      const std::string num_tokens = shape_of(tokens, 1, 2);
      add_node("Slice", {layer.name, numbers({0}), num_tokens, numbers({0})});
      positions = value_;
    }
    add_node("Add", {tokens, positions});
  }

  /// Computes Softmax(q kᵀ / sqrt(D)) v. A shape's extents of 0 are those of the input.
  void add_attention(const NetworkLayer& layer) {
    const int64_t heads = layer.num_heads, width = layer.head_width;
    add_node("Reshape", {value_, numbers({0, 0, 3, heads, width})});
    add_ints("perm", {2, 0, 3, 1, 4}, add_node("Transpose", {value_}));
    const std::string parts = value_;
    const auto part = [&](const char* name, int64_t index) {
      add_int("axis", 0,
              add_node("Gather", {parts, constant(name, at::scalar_tensor(index, at::kLong))}));
      return value_;
    };
    const std::string keys = part("keys", 1), values = part("values", 2);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    add_node("Mul", {part("queries", 0), constant(fmt::format("scale_of_{}", width), scale)});
    const std::string queries = value_;
    add_ints("perm", {0, 1, 3, 2}, add_node("Transpose", {keys}));
    add_node("MatMul", {queries, value_});
    if (layer.is_causal) add_mask();
    add_int("axis", -1, add_node("Softmax", {value_}));
    add_node("MatMul", {value_, values});
    add_ints("perm", {0, 2, 1, 3}, add_node("Transpose", {value_}));
    add_node("Reshape", {value_, numbers({0, 0, heads * width})});
  }

  /// Adds -inf to the scores [B, A, T, T] of later tokens.
  void add_mask() {
    const std::string scores = value_;
    if (mask_.empty()) {
      const std::string shape = shape_of(scores, 2, 4);
      add_node("Expand",
               {constant("minus_infinity", -std::numeric_limits<double>::infinity()), shape});
      pb::Node* node =
          add_node("Trilu", {value_, constant("first_diagonal", at::ones({}, at::kLong))});
      add_int("upper", 1, node);
      mask_ = value_;
    }
    add_node("Add", {scores, mask_});
  }

  const PortableNetwork& network_;
  const bool int8_weights_;
  pb::Graph& graph_;
  std::vector<Output> outputs_;      // of the layers
  std::set<std::string> constants_;  // names
  std::string value_;
  std::string mask_;
};

}  // namespace

void require_onnx_room(const PortableNetwork& network) {
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

std::string onnx_bytes(const PortableNetwork& network, bool int8_weights) {
  require_onnx_room(network);
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
