#include "infer/sparse/onnx_graph.h"

#include <cstring>
#include <set>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "infer/onnx.pb.h"

namespace lockstep::infer {
namespace {

namespace pb = lockstep::onnx::pb;
using Attribute = OnnxNode::Attribute;

/// Reader of one file. All of its errors name the file.
class Reader {
 public:
  Reader(const std::string& source, std::filesystem::path folder)
      : source_(source), folder_(std::move(folder)) {}

  OnnxGraph read(const std::string& bytes) {
    pb::Model model;
    if (!model.ParseFromString(bytes) || !model.has_graph())
      refuse("is not an ONNX file, or is damaged");
    for (const pb::OperatorSet& set : model.opset_import())
      if (set.domain().empty() || set.domain() == "ai.onnx") operator_set_ = set.version();
    for (const pb::Tensor& tensor : model.graph().initializer())
      graph_.constants[tensor.name()] = tensor_of(tensor);
    for (const auto& [name, tensor] : graph_.constants) known_.insert(name);
    for (const pb::ValueInfo& input : model.graph().input()) add_input(input);
    for (const pb::Node& node : model.graph().node()) add_node(node);
    for (const pb::ValueInfo& output : model.graph().output()) {
      graph_.outputs.push_back(value_of(output));
      require(output.name());
    }
    if (graph_.inputs.empty() || graph_.outputs.empty()) refuse("has no inputs or no outputs");
    return std::move(graph_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ExitCode::kBadData, "infer", source_ + ": " + why);
  }

  void require(const std::string& name) const {
    if (!known_.contains(name))
      refuse(fmt::format("is damaged: nothing computes the value '{}'", name));
  }

  /// Older files list constants among the inputs.
  void add_input(const pb::ValueInfo& input) {
    if (!known_.insert(input.name()).second) return;
    graph_.inputs.push_back(value_of(input));
  }

  OnnxValue value_of(const pb::ValueInfo& info) const {
    OnnxValue value{.name = info.name()};
    const auto& tensor = info.type().tensor_type();
    const auto dtype = onnx_type(tensor.elem_type());
    if (!dtype) refuse(fmt::format("its value '{}' is no tensor of a known type", value.name));
    value.dtype = *dtype;
    for (const auto& dim : tensor.shape().dim())
      value.shape.push_back(dim.has_dim_value() && dim.dim_value() > 0 ? dim.dim_value() : -1);
    return value;
  }

  void add_node(const pb::Node& from) {
    OnnxNode node{.op = from.op_type(), .name = from.name(), .operator_set = operator_set_};
    if (!from.domain().empty() && from.domain() != "ai.onnx")
      node.op = from.domain() + "." + node.op;
    for (const std::string& input : from.input()) {
      if (!input.empty()) require(input);
      node.inputs.push_back(input);
    }
    for (const std::string& output : from.output()) {
      if (!output.empty() && !known_.insert(output).second)
        refuse(fmt::format("is damaged: two nodes compute the value '{}'", output));
      node.outputs.push_back(output);
    }
    if (node.outputs.empty() || node.outputs[0].empty())
      refuse(fmt::format("is damaged: node '{}' ({}) has no output", node.name, node.op));
    for (const pb::Attribute& attribute : from.attribute())
      if (auto value = attribute_of(attribute))
        node.attributes.emplace(attribute.name(), *std::move(value));
    graph_.nodes.push_back(std::move(node));
  }

  std::optional<Attribute> attribute_of(const pb::Attribute& from) const {
    switch (from.type()) {
      case pb::Attribute::FLOAT:
        return static_cast<double>(from.f());
      case pb::Attribute::INT:
        return from.i();
      case pb::Attribute::STRING:
        return from.s();
      case pb::Attribute::TENSOR:
        return tensor_of(from.t());
      case pb::Attribute::FLOATS:
        return std::vector<double>(from.floats().begin(), from.floats().end());
      case pb::Attribute::INTS:
        return std::vector<int64_t>(from.ints().begin(), from.ints().end());
      default:
        return std::nullopt;  // of another type: the operator refuses what it cannot do without
    }
  }

  at::Tensor tensor_of(const pb::Tensor& from) const {
    const auto refuse_tensor = [&](const std::string& why) {
      refuse(fmt::format("its tensor '{}' {}", from.name(), why));
    };
    const auto type = onnx_type(from.data_type());
    if (!type) refuse_tensor(fmt::format("has the unknown type {}", from.data_type()));
    const std::vector<int64_t> sizes(from.dims().begin(), from.dims().end());
    int64_t num_items = 1;
    for (const int64_t size : sizes)
      if (size < 0 || __builtin_mul_overflow(num_items, size, &num_items) ||
          num_items > int64_t{1} << 40)
        refuse_tensor("has a damaged shape");
    const auto num_bytes = static_cast<uint64_t>(num_items) * c10::elementSize(*type);
    const std::string outside = from.data_location() == 1 ? external_bytes(from) : "";
    const std::string& raw = from.data_location() == 1 ? outside : from.raw_data();
    const auto copied = [&](const auto& items, at::ScalarType stored) {
      if (items.size() != num_items) refuse_tensor("has another number of values than its shape");
      at::Tensor tensor = at::empty(sizes, stored);
      if (num_items > 0) std::memcpy(tensor.mutable_data_ptr(), items.data(), tensor.nbytes());
      return tensor;
    };
    if (!raw.empty() || num_items == 0) {
      if (raw.size() != num_bytes) refuse_tensor("has another number of bytes than its shape");
      at::Tensor tensor = at::empty(sizes, *type);
      if (num_items > 0) std::memcpy(tensor.mutable_data_ptr(), raw.data(), raw.size());
      return tensor;
    }
    if (*type == at::kFloat) return copied(from.float_data(), at::kFloat);
    if (*type == at::kLong) return copied(from.int64_data(), at::kLong);
    if (*type == at::kHalf || *type == at::kDouble) refuse_tensor("has no values");
    return copied(from.int32_data(), at::kInt).to(*type);
  }

  /// Reads a tensor from a file next to this one.
  std::string external_bytes(const pb::Tensor& from) const {
    std::string location;
    int64_t offset = 0;
    std::optional<int64_t> length;
    for (const pb::Entry& entry : from.external_data()) {
      if (entry.key() == "location") location = entry.value();
      if (entry.key() == "offset") offset = parse_integer(entry.value()).value_or(-1);
      if (entry.key() == "length") length = parse_integer(entry.value());
    }
    if (location.empty() || location.find('/') != std::string::npos || location == "..")
      refuse(fmt::format("its tensor '{}' is in the file '{}', not in one of this folder",
                         from.name(), location));
    const std::string& bytes = file(location);
    const auto size = static_cast<int64_t>(bytes.size());
    if (offset < 0 || offset > size || length.value_or(0) < 0 || length.value_or(0) > size - offset)
      refuse(fmt::format("its tensor '{}' is beyond the end of {}", from.name(), location));
    return bytes.substr(static_cast<size_t>(offset),
                        static_cast<size_t>(length.value_or(size - offset)));
  }

  const std::string& file(const std::string& location) const {
    if (location != external_name_) {
      external_ = files::read(folder_ / location);
      external_name_ = location;
    }
    return external_;
  }

  const std::string& source_;
  const std::filesystem::path folder_;
  mutable std::string external_name_, external_;  // the last file that was read
  int64_t operator_set_ = 1;
  OnnxGraph graph_;
  std::set<std::string> known_;
};

}  // namespace

std::optional<at::ScalarType> onnx_type(int64_t data_type) {
  switch (data_type) {
    case 1:
      return at::kFloat;
    case 2:
      return at::kByte;
    case 3:
      return at::kChar;
    case 6:
      return at::kInt;
    case 7:
      return at::kLong;
    case 9:
      return at::kBool;
    case 10:
      return at::kHalf;
    case 11:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

void OnnxNode::refuse(const std::string& why) const {
  throw Error(ExitCode::kBadData, "infer", fmt::format("node '{}' ({}): {}", name, op, why));
}

OnnxGraph read_onnx(const std::string& bytes, const std::string& source,
                    const std::filesystem::path& folder) {
  return Reader(source, folder).read(bytes);
}

}  // namespace lockstep::infer
