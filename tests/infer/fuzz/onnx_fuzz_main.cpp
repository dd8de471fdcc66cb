// onnx_fuzz FORMAT [--seed S] [--cases N | --seconds T] [--first I]
//
// Opens mutated ONNX files of a residual network, plain or quantized, and computes them with engine
// sparse. Built with AddressSanitizer and UBSan, so a memory error ends it. A case also fails if it
// takes more processor time or memory than so small a file accounts for, or throws anything but
// Error(kBadData), or Error(kUsage) for an operator that is not supported.
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "infer/onnx.pb.h"
#include "infer/sparse/sparse_network.h"
#include "tests/support/byte_fuzzer.h"

namespace lockstep::fuzz {
namespace {

namespace pb = lockstep::onnx::pb;
using Ints = std::vector<int64_t>;

/// Writer of a small file. Each function returns the name of a value.
class File {
 public:
  explicit File(bool is_quantized) : is_quantized_(is_quantized) {
    model_.set_ir_version(8);
    model_.add_opset_import()->set_version(17);
    declare(graph()->add_input(), "inputs", {-1, 3, 8, 8});
    declare(graph()->add_output(), "logits", {-1, 2});
  }

  std::string floats(const Ints& sizes) {
    pb::Tensor* const tensor = constant(1, sizes);
    int64_t num = 1;
    for (const int64_t size : sizes) num *= size;
    for (int64_t i = 0; i < num; ++i)
      tensor->add_float_data(i % 3 == 0 ? static_cast<float>(i % 5) - 2 : 0);
    return tensor->name();
  }
  std::string ints(const Ints& values) {
    pb::Tensor* const tensor = constant(7, {static_cast<int64_t>(values.size())});
    for (const int64_t value : values) tensor->add_int64_data(value);
    return tensor->name();
  }
  /// Weights, in a quantized network dequantized int8.
  std::string weights(const Ints& sizes) {
    if (!is_quantized_) return floats(sizes);
    pb::Tensor* const tensor = constant(3, sizes);
    int64_t num = 1;
    for (const int64_t size : sizes) num *= size;
    for (int64_t i = 0; i < num; ++i) tensor->add_int32_data(static_cast<int32_t>(i % 3 * 7 - 7));
    return node("DequantizeLinear", {tensor->name(), scale(), zero()});
  }
  /// The value, in a quantized network rounded to int8 and back.
  std::string rounded(const std::string& value) {
    if (!is_quantized_) return value;
    const std::string bytes = node("QuantizeLinear", {value, scale(), zero()});
    return node("DequantizeLinear", {bytes, scale(), zero()});
  }
  std::string node(const std::string& op, const std::vector<std::string>& inputs,
                   const std::map<std::string, Ints>& attributes = {},
                   const std::string& output = "") {
    pb::Node* const made = graph()->add_node();
    made->set_op_type(op);
    for (const std::string& input : inputs) made->add_input(input);
    made->add_output(output.empty() ? "v" + std::to_string(graph()->node_size()) : output);
    for (const auto& [name, values] : attributes) {
      auto* const attribute = made->add_attribute();
      attribute->set_name(name);
      attribute->set_type(values.size() == 1 ? pb::Attribute::INT : pb::Attribute::INTS);
      if (values.size() == 1)
        attribute->set_i(values[0]);
      else
        for (const int64_t value : values) attribute->add_ints(value);
    }
    return made->output(0);
  }
  std::string bytes() const { return model_.SerializeAsString(); }

 private:
  pb::Graph* graph() { return model_.mutable_graph(); }
  pb::Tensor* constant(int type, const Ints& sizes) {
    pb::Tensor* const tensor = graph()->add_initializer();
    tensor->set_name("c" + std::to_string(graph()->initializer_size()));
    tensor->set_data_type(type);
    for (const int64_t size : sizes) tensor->add_dims(size);
    return tensor;
  }
  std::string scale() {
    pb::Tensor* const tensor = constant(1, {});
    tensor->add_float_data(0.05F);
    return tensor->name();
  }
  std::string zero() {
    pb::Tensor* const tensor = constant(3, {});
    tensor->add_int32_data(0);
    return tensor->name();
  }
  static void declare(pb::ValueInfo* value, const std::string& name, const Ints& sizes) {
    value->set_name(name);
    auto* const type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(1);
    for (const int64_t size : sizes)
      if (size < 0)
        type->mutable_shape()->add_dim()->set_dim_param("batch");
      else
        type->mutable_shape()->add_dim()->set_dim_value(size);
  }

  const bool is_quantized_;
  pb::Model model_;
};

/// A residual block, a strided depthwise convolution, a pooling and a classifier.
std::string network(bool is_quantized) {
  File file(is_quantized);
  const Ints ones{1, 1, 1, 1}, two{2, 2};
  std::string x = file.rounded("inputs");
  x = file.node("Conv", {x, file.weights({6, 3, 3, 3}), file.floats({6})}, {{"pads", ones}});
  x = file.rounded(file.node("Relu", {x}));
  std::string y = file.node("Conv", {x, file.weights({6, 6, 3, 3})}, {{"pads", ones}});
  y = file.rounded(file.node("BatchNormalization", {y, file.floats({6}), file.floats({6}),
                                                    file.floats({6}), file.floats({6})}));
  y = file.node("Conv", {y, file.weights({6, 6, 1, 1})});
  x = file.rounded(file.node("Relu", {file.node("Add", {y, x})}));
  x = file.node("Conv", {x, file.floats({6, 1, 3, 3})},
                {{"pads", ones}, {"strides", two}, {"group", {6}}});
  x = file.node("MaxPool", {x}, {{"kernel_shape", two}, {"strides", two}});
  x = file.node("Reshape", {file.node("GlobalAveragePool", {x}), file.ints({0, -1})});
  file.node("MatMul", {file.rounded(x), file.weights({6, 2})}, {}, "logits");
  return file.bytes();
}

/// Opens the file, and computes two samples twice: the second time as chosen by measurement.
void compute(const std::string& bytes) {
  try {
    infer::SparseNetwork network(infer::read_onnx(bytes, "case.onnx", ""));
    for (int i = 0; i < 2; ++i) (void)network.run({at::ones({2, 3, 8, 8})});
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kUsage) throw;
  }
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) {
  using namespace lockstep::fuzz;
  at::set_num_threads(1);
  const std::string plain = network(false), quantized = network(true);
  for (const std::string& whole : {plain, quantized}) compute(whole);  // LibTorch's first memory
  return fuzz_main(argc, argv,
                   {{"plain", {{plain}, compute}}, {"quantized", {{quantized}, compute}}});
}
