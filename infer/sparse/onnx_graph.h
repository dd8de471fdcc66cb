#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

/// Graph of an ONNX file.
namespace lockstep::infer {

/// Returns LibTorch's type of a TensorProto.DataType; nullopt for types that no network uses.
std::optional<at::ScalarType> onnx_type(int64_t data_type);

/// Input or output of a graph.
struct OnnxValue {
  std::string name;
  std::vector<int64_t> shape;  ///< -1: any extent
  at::ScalarType dtype = at::kFloat;
};

/// Node of a graph: one call of an ONNX operator.
struct OnnxNode {
  using Attribute = std::variant<int64_t, double, std::string, at::Tensor, std::vector<int64_t>,
                                 std::vector<double>>;

  std::string op, name;
  std::vector<std::string> inputs, outputs;  ///< names of values; empty: not given
  std::map<std::string, Attribute> attributes;
  int64_t operator_set = 0;

  bool has(const std::string& attribute) const { return attributes.contains(attribute); }
  /// Returns an attribute, or `otherwise` if it is absent. Throws Error(kBadData) for another type.
  template <typename T>
  T get(const std::string& attribute, T otherwise) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return otherwise;
    if (const T* value = std::get_if<T>(&found->second)) return *value;
    refuse("its attribute '" + attribute + "' has another type");
  }
  std::vector<int64_t> ints(const std::string& attribute, std::vector<int64_t> otherwise) const {
    return get(attribute, std::move(otherwise));
  }
  /// Throws Error(kBadData) that names the node.
  [[noreturn]] void refuse(const std::string& why) const;
};

struct OnnxGraph {
  std::vector<OnnxNode> nodes;                  ///< each after those whose outputs it uses
  std::map<std::string, at::Tensor> constants;  ///< by name
  std::vector<OnnxValue> inputs, outputs;
};

/// Reads the bytes of an ONNX file. Tensors that it stores in other files are read from `folder`.
///
/// Throws Error(kBadData), naming `source`, if the bytes are damaged: a tensor of another size, a
/// value without a source, a file outside the folder. Operators are not checked here.
OnnxGraph read_onnx(const std::string& bytes, const std::string& source,
                    const std::filesystem::path& folder);

}  // namespace lockstep::infer
