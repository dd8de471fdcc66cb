#include "infer/sparse/onnx_operators.h"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "base/error.h"

namespace lockstep::infer {
namespace {

using Ints = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;

/// True if a tracer records what is computed from this tensor.
bool is_recorded(const at::Tensor& tensor) {
  const auto& state = torch::jit::tracer::getTracingState();
  return state && tensor.defined() && state->hasValue(tensor);
}

/// One call of an operator.
struct Call {
  const OnnxNode& node;
  const Tensors& inputs;

  bool has(size_t i) const { return i < inputs.size() && inputs[i].defined(); }
  const at::Tensor& in(size_t i) const {
    if (!has(i)) node.refuse("input " + std::to_string(i) + " is missing");
    return inputs[i];
  }
  int64_t number(const char* name, int64_t otherwise) const { return node.get(name, otherwise); }
  double real(const char* name, double otherwise) const { return node.get(name, otherwise); }

  /// Input whose values are read. A tracer would take them for constants.
  const at::Tensor& read(size_t i) const {
    if (is_recorded(in(i))) node.refuse("has no TorchScript: it depends on the network's inputs");
    return in(i);
  }
  /// Numbers that are an input in newer files, and an attribute in older ones.
  Ints numbers(size_t i, const char* attribute, Ints otherwise = {}) const {
    if (!has(i)) return node.ints(attribute, std::move(otherwise));
    const at::Tensor list = read(i).to(at::kLong).flatten().contiguous();
    return {list.const_data_ptr<int64_t>(), list.const_data_ptr<int64_t>() + list.numel()};
  }
  double scalar(size_t i, const char* attribute, double otherwise) const {
    return has(i) ? read(i).item<double>() : real(attribute, otherwise);
  }
};

/// Padding of a convolution or pooling: [begin..., end...]. LibTorch's has one number per axis.
Ints pads_of(const Call& call) {
  const auto automatic = call.node.get<std::string>("auto_pad", "NOTSET");
  if (automatic != "NOTSET" && automatic != "VALID")
    call.node.refuse("auto_pad " + automatic + " is not supported; export explicit pads");
  return call.node.ints("pads", Ints(2 * static_cast<size_t>(call.in(0).dim() - 2), 0));
}

/// Pads the last axes by [begin..., end...].
at::Tensor padded(const at::Tensor& tensor, const Ints& pads, const at::Scalar& value) {
  const size_t num_axes = pads.size() / 2;
  Ints reversed;  // LibTorch begins with the last axis
  for (size_t i = num_axes; i-- > 0;) {
    reversed.push_back(pads[i]);
    reversed.push_back(pads[i + num_axes]);
  }
  return at::constant_pad_nd(tensor, reversed, value);
}

at::Tensor conv(const Call& call) {
  const at::Tensor& weight = call.in(1);
  const auto num_axes = static_cast<size_t>(weight.dim() - 2);
  const at::Tensor inputs = padded(call.in(0), pads_of(call), 0);
  return at::convolution(inputs, weight, call.has(2) ? call.in(2) : at::Tensor(),
                         call.node.ints("strides", Ints(num_axes, 1)), Ints(num_axes, 0),
                         call.node.ints("dilations", Ints(num_axes, 1)), false, Ints(num_axes, 0),
                         call.number("group", 1));
}

at::Tensor max_pool(const Call& call) {
  const Ints kernel = call.node.ints("kernel_shape", {});
  if (kernel.size() != 2 || call.node.outputs.size() > 1)
    call.node.refuse("only pooling of images without indices is supported");
  const double least = -std::numeric_limits<double>::infinity();
  return at::max_pool2d(padded(call.in(0), pads_of(call), least), kernel,
                        call.node.ints("strides", {1, 1}), 0, call.node.ints("dilations", {1, 1}),
                        call.number("ceil_mode", 0) != 0);
}

at::Tensor average_pool(const Call& call) {
  const Ints kernel = call.node.ints("kernel_shape", {}), pads = pads_of(call);
  if (kernel.size() != 2 || pads.size() != 4 || pads[0] != pads[2] || pads[1] != pads[3])
    call.node.refuse("only pooling of images with symmetric pads is supported");
  return at::avg_pool2d(call.in(0), kernel, call.node.ints("strides", {1, 1}), {pads[0], pads[1]},
                        call.number("ceil_mode", 0) != 0, call.number("count_include_pad", 0) != 0);
}

Ints spatial_axes(const at::Tensor& tensor) {
  Ints axes;
  for (int64_t axis = 2; axis < tensor.dim(); ++axis) axes.push_back(axis);
  return axes;
}

at::Tensor batch_norm(const Call& call) {
  return at::batch_norm(call.in(0), call.in(1), call.in(2), call.in(3), call.in(4), false, 0.0,
                        call.real("epsilon", 1e-5), false);
}

at::Tensor layer_norm(const Call& call) {
  const at::Tensor& inputs = call.in(0);
  int64_t axis = call.number("axis", -1);
  if (axis < 0) axis += inputs.dim();
  return at::layer_norm(inputs, inputs.sizes().slice(static_cast<size_t>(axis)), call.in(1),
                        call.has(2) ? call.in(2) : at::Tensor(), call.real("epsilon", 1e-5));
}

at::Tensor gemm(const Call& call) {
  const at::Tensor a = call.number("transA", 0) != 0 ? call.in(0).t() : call.in(0);
  const at::Tensor b = call.number("transB", 0) != 0 ? call.in(1).t() : call.in(1);
  const double alpha = call.real("alpha", 1), beta = call.real("beta", 1);
  return call.has(2) ? at::addmm(call.in(2), a, b, beta, alpha) : at::mm(a, b).mul_(alpha);
}

at::Tensor softmax(const Call& call) {
  const at::Tensor& inputs = call.in(0);
  if (call.node.operator_set >= 13) return at::softmax(inputs, call.number("axis", -1));
  // Older operators see a matrix: all axes from this one on are one.
  const int64_t axis = call.number("axis", 1);
  return at::softmax(inputs.flatten(axis), axis).reshape(inputs.sizes());
}

at::Tensor reshape(const Call& call) {
  Ints shape = call.numbers(1, "shape");
  for (size_t i = 0; i < shape.size() && call.number("allowzero", 0) == 0; ++i)
    if (shape[i] == 0) shape[i] = call.in(0).size(static_cast<int64_t>(i));
  return call.in(0).reshape(shape);
}

at::Tensor flatten(const Call& call) {
  const at::Tensor& inputs = call.in(0);
  int64_t axis = call.number("axis", 1), num_rows = 1;
  if (axis < 0) axis += inputs.dim();
  for (int64_t i = 0; i < axis; ++i) num_rows *= inputs.size(i);
  return inputs.reshape({num_rows, num_rows == 0 ? 0 : inputs.numel() / num_rows});
}

at::Tensor transpose(const Call& call) {
  Ints order = call.node.ints("perm", {});
  for (int64_t axis = call.in(0).dim(); order.empty() && axis-- > 0;) order.push_back(axis);
  return call.in(0).permute(order);
}

at::Tensor squeeze(const Call& call) {
  const Ints axes = call.numbers(1, "axes");
  return axes.empty() ? call.in(0).squeeze() : call.in(0).squeeze(axes);
}

at::Tensor unsqueeze(const Call& call) {
  at::Tensor tensor = call.in(0);
  Ints axes = call.numbers(1, "axes");
  for (int64_t& axis : axes)
    if (axis < 0) axis += tensor.dim() + static_cast<int64_t>(axes.size());
  std::ranges::sort(axes);
  for (const int64_t axis : axes) tensor = tensor.unsqueeze(axis);
  return tensor;
}

at::Tensor slice(const Call& call) {
  at::Tensor tensor = call.in(0);
  const Ints starts = call.numbers(1, "starts"), ends = call.numbers(2, "ends");
  Ints axes = call.numbers(3, "axes"), steps = call.numbers(4, "steps", Ints(starts.size(), 1));
  for (size_t i = axes.size(); i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != axes.size())
    call.node.refuse("its starts, ends, axes and steps have different lengths");
  for (size_t i = 0; i < starts.size(); ++i) {
    if (steps[i] < 1) call.node.refuse("steps below 1 are not supported");
    tensor = tensor.slice(axes[i], starts[i], ends[i], steps[i]);
  }
  return tensor;
}

at::Tensor gather(const Call& call) {
  const at::Tensor& tensor = call.in(0);
  int64_t axis = call.number("axis", 0);
  if (axis < 0) axis += tensor.dim();
  at::Tensor indices = call.in(1).to(at::kLong);
  indices = at::where(indices < 0, indices + tensor.size(axis), indices);
  Ints shape = tensor.sizes().slice(0, static_cast<size_t>(axis)).vec();
  shape.insert(shape.end(), indices.sizes().begin(), indices.sizes().end());
  shape.insert(shape.end(), tensor.sizes().begin() + axis + 1, tensor.sizes().end());
  return tensor.index_select(axis, indices.flatten()).reshape(shape);
}

Tensors split(const Call& call) {
  const int64_t axis = call.number("axis", 0), extent = call.in(0).size(axis);
  Ints sizes = call.numbers(1, "split");
  if (sizes.empty()) {
    const auto num = static_cast<int64_t>(call.node.outputs.size());
    const int64_t part = (extent + num - 1) / num;
    sizes.assign(call.node.outputs.size(), part);
    sizes.back() = extent - part * (num - 1);
  }
  return call.in(0).split_with_sizes(sizes, axis);
}

at::Tensor cast(const Call& call) {
  const std::optional<at::ScalarType> type = onnx_type(call.number("to", 1));
  if (!type) call.node.refuse("casts to a type that is not supported");
  return call.in(0).to(*type);
}

at::Tensor reduce_mean(const Call& call) {
  const Ints axes = call.numbers(1, "axes");
  const bool keeps = call.number("keepdims", 1) != 0;
  return axes.empty() ? call.in(0).mean(at::OptionalIntArrayRef(), keeps)
                      : call.in(0).mean(axes, keeps);
}

at::Tensor clip(const Call& call) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  return at::clamp(call.in(0), call.scalar(1, "min", -kAny), call.scalar(2, "max", kAny));
}

/// Shape of scales for one axis of a tensor, or of one scale for all.
at::Tensor along(const Call& call, const at::Tensor& scale) {
  if (scale.numel() == 1) return scale.reshape({});
  int64_t axis = call.number("axis", 1);
  Ints shape(static_cast<size_t>(call.in(0).dim()), 1);
  if (axis < 0) axis += call.in(0).dim();
  shape.at(static_cast<size_t>(axis)) = scale.numel();
  return scale.reshape(shape);
}

at::Tensor quantize(const Call& call) {
  const at::Tensor zero = call.has(2) ? call.in(2) : at::zeros({}, at::kByte);
  const bool is_signed = zero.scalar_type() == at::kChar;
  return (at::round(call.in(0) / along(call, call.in(1))) + along(call, zero))
      .clamp_(is_signed ? -128 : 0, is_signed ? 127 : 255)
      .to(zero.scalar_type());
}

at::Tensor dequantize(const Call& call) {
  at::Tensor values = call.in(0).to(at::kFloat);
  if (call.has(2)) values = values - along(call, call.in(2));
  return values * along(call, call.in(1));
}

at::Tensor constant(const Call& call) {
  if (call.node.has("value")) return call.node.get<at::Tensor>("value", {});
  if (call.node.has("value_float"))
    return at::scalar_tensor(call.real("value_float", 0), at::kFloat);
  if (call.node.has("value_int")) return at::scalar_tensor(call.number("value_int", 0), at::kLong);
  if (call.node.has("value_ints")) return at::tensor(call.node.ints("value_ints", {}), at::kLong);
  call.node.refuse("has a value of a type that is not supported");
}

at::Tensor constant_of_shape(const Call& call) {
  const auto value = call.node.get<at::Tensor>("value", at::zeros({1}, at::kFloat));
  return at::full(call.numbers(0, ""), value.item(), value.options());
}

at::Tensor expand(const Call& call) {
  const Ints shape = call.numbers(1, "");
  return call.in(0) * at::ones(shape, call.in(0).options());  // shapes extend each other
}

at::Tensor pad(const Call& call) {
  if (call.node.get<std::string>("mode", "constant") != "constant" || call.has(3))
    call.node.refuse("only constant padding of all axes is supported");
  return padded(call.in(0), call.numbers(1, "pads"), call.scalar(2, "value", 0));
}

at::Tensor divide(const Call& call) {
  const bool is_whole = !call.in(0).is_floating_point() && !call.in(1).is_floating_point();
  return is_whole ? at::div(call.in(0), call.in(1), "trunc") : call.in(0) / call.in(1);
}

at::Tensor shape(const Call& call) {
  const Ints sizes = call.in(0).sizes().vec();
  return at::tensor(sizes, at::kLong)
      .slice(0, call.number("start", 0), call.number("end", call.in(0).dim()));
}

at::Tensor triangle(const Call& call) {
  const auto diagonal = static_cast<int64_t>(call.scalar(1, "", 0));
  return call.number("upper", 1) != 0 ? at::triu(call.in(0), diagonal)
                                      : at::tril(call.in(0), diagonal);
}

at::Tensor concat(const Call& call) { return at::cat(call.inputs, call.number("axis", 0)); }
at::Tensor gelu(const Call& call) {
  return at::gelu(call.in(0), call.node.get<std::string>("approximate", "none"));
}
at::Tensor first(const Call& call) { return call.in(0); }

using Operator = at::Tensor (*)(const Call& call);

const std::map<std::string, Operator>& operators() {
  static const std::map<std::string, Operator> all = {
      {"Abs", [](const Call& c) { return at::abs(c.in(0)); }},
      {"Add", [](const Call& c) { return c.in(0) + c.in(1); }},
      {"AveragePool", average_pool},
      {"BatchNormalization", batch_norm},
      {"Cast", cast},
      {"Clip", clip},
      {"Concat", concat},
      {"Constant", constant},
      {"ConstantOfShape", constant_of_shape},
      {"Conv", conv},
      {"DequantizeLinear", dequantize},
      {"Div", divide},
      {"Dropout", first},
      {"Elu", [](const Call& c) { return at::elu(c.in(0), c.real("alpha", 1)); }},
      {"Equal", [](const Call& c) { return at::eq(c.in(0), c.in(1)); }},
      {"Erf", [](const Call& c) { return at::erf(c.in(0)); }},
      {"Exp", [](const Call& c) { return at::exp(c.in(0)); }},
      {"Expand", expand},
      {"Flatten", flatten},
      {"Gather", gather},
      {"Gelu", gelu},
      {"Gemm", gemm},
      {"GlobalAveragePool",
       [](const Call& c) { return c.in(0).mean(spatial_axes(c.in(0)), true); }},
      {"GlobalMaxPool", [](const Call& c) { return c.in(0).amax(spatial_axes(c.in(0)), true); }},
      {"HardSigmoid",
       [](const Call& c) {
         return at::clamp(c.in(0) * c.real("alpha", 0.2) + c.real("beta", 0.5), 0, 1);
       }},
      {"HardSwish", [](const Call& c) { return at::hardswish(c.in(0)); }},
      {"Identity", first},
      {"LayerNormalization", layer_norm},
      {"LeakyRelu", [](const Call& c) { return at::leaky_relu(c.in(0), c.real("alpha", 0.01)); }},
      {"LogSoftmax", [](const Call& c) { return at::log_softmax(c.in(0), c.number("axis", -1)); }},
      {"MatMul", [](const Call& c) { return at::matmul(c.in(0), c.in(1)); }},
      {"MaxPool", max_pool},
      {"Mul", [](const Call& c) { return c.in(0) * c.in(1); }},
      {"Neg", [](const Call& c) { return at::neg(c.in(0)); }},
      {"Pad", pad},
      {"Pow", [](const Call& c) { return at::pow(c.in(0), c.in(1)); }},
      {"QuantizeLinear", quantize},
      {"ReduceMean", reduce_mean},
      {"Relu", [](const Call& c) { return at::relu(c.in(0)); }},
      {"Reshape", reshape},
      {"Shape", shape},
      {"Sigmoid", [](const Call& c) { return at::sigmoid(c.in(0)); }},
      {"Slice", slice},
      {"Softmax", softmax},
      {"Sqrt", [](const Call& c) { return at::sqrt(c.in(0)); }},
      {"Squeeze", squeeze},
      {"Sub", [](const Call& c) { return c.in(0) - c.in(1); }},
      {"Tanh", [](const Call& c) { return at::tanh(c.in(0)); }},
      {"Transpose", transpose},
      {"Trilu", triangle},
      {"Unsqueeze", unsqueeze},
      {"Where", [](const Call& c) { return at::where(c.in(0), c.in(1), c.in(2)); }},
  };
  return all;
}

}  // namespace

bool knows_onnx_operator(const std::string& op) {
  return op == "Split" || operators().contains(op);
}

std::vector<at::Tensor> run_onnx(const OnnxNode& node, const std::vector<at::Tensor>& inputs) {
  const Call call{node, inputs};
  // Shapes, and what is computed from them, are constants for a tracer.
  const bool is_constant = node.op == "Shape" || std::ranges::none_of(inputs, is_recorded);
  const bool pauses = torch::jit::tracer::isTracing() && is_constant;
  const auto resume = c10::make_scope_exit(pauses ? torch::jit::tracer::pauseTracing() : [] {});
  try {
    if (node.op == "Split") return split(call);
    return {operators().at(node.op)(call)};
  } catch (const c10::Error& fault) {  // shapes or types that do not fit
    node.refuse(fault.what_without_backtrace());
  } catch (const std::logic_error& fault) {  // an axis or a list that is out of range
    node.refuse(fault.what());
  } catch (const std::bad_alloc&) {
    node.refuse("its outputs do not fit the memory");
  }
}

}  // namespace lockstep::infer
