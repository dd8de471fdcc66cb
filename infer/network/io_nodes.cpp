#include "infer/network/io_nodes.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"

namespace lockstep::infer {
// io_nodes.json: {"inputs": [NODE, ...], "outputs": [NODE, ...]}, NODE = {"name", "shape",
// "dtype"}. An extent of null means any. Exports write the file, the predictor checks each feed
// with it.
namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 8> kTypes = {{{"float32", at::kFloat},
                                                                           {"float64", at::kDouble},
                                                                           {"float16", at::kHalf},
                                                                           {"int64", at::kLong},
                                                                           {"int32", at::kInt},
                                                                           {"uint8", at::kByte},
                                                                           {"int8", at::kChar},
                                                                           {"bool", at::kBool}}};

// Limit against a wrong file: a real one has some hundred bytes.
constexpr int64_t kMaxNodesBytes = 1 << 20;

at::ScalarType dtype_of(const std::string& name) {
  for (const auto& [known, type] : kTypes)
    if (name == known) return type;
  throw std::invalid_argument("there is no type '" + name + "'");
}

/// Parses a list of nodes. Throws std::exception for another form.
std::vector<IoNode> nodes_of(const nlohmann::json& list) {
  std::vector<IoNode> nodes;
  for (const auto& json : list) {
    IoNode node{.name = json.at("name").get<std::string>(),
                .dtype = dtype_of(json.value("dtype", "float32"))};
    for (const auto& extent : json.at("shape"))
      node.shape.push_back(extent.is_null() ? IoNode::kAny : extent.get<int64_t>());
    nodes.push_back(std::move(node));
  }
  // Exceptions here become Error(kBadData) in read_io_nodes().
  if (nodes.empty()) throw std::invalid_argument("a network has inputs and outputs");
  return nodes;
}

std::string shape_text(at::IntArrayRef shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape)
    extents.push_back(extent == IoNode::kAny ? "any" : std::to_string(extent));
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

/// True if a tensor has the node's type and shape. Types are not converted: a silent conversion
/// could hide wrong data.
bool fits(const at::Tensor& tensor, const IoNode& node) {
  if (tensor.scalar_type() != node.dtype || tensor.dim() != static_cast<int64_t>(node.shape.size()))
    return false;
  for (size_t i = 0; i < node.shape.size(); ++i)
    if (node.shape[i] != IoNode::kAny && node.shape[i] != tensor.size(static_cast<int64_t>(i)))
      return false;
  return true;
}

/// Describes a value for messages: type and shape, "texts" or "a map".
std::string value_text(const coord::DataValue& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value))
    return fmt::format("{} {}", dtype_name(tensor->scalar_type()), shape_text(tensor->sizes()));
  return std::holds_alternative<std::vector<std::string>>(value) ? "texts" : "a map";
}

std::string keys_text(const coord::DataMap& feed) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : feed.values()) keys.push_back(key);
  return keys.empty() ? "nothing" : fmt::format("{}", fmt::join(keys, ", "));
}

}  // namespace

std::vector<std::string> keys_of(const std::vector<IoNode>& nodes) {
  std::vector<std::string> keys;
  for (const IoNode& node : nodes) keys.push_back(node.name);
  return keys;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : kTypes)
    if (type == dtype) return name;
  return toString(dtype);
}

IoNodes read_io_nodes(const std::filesystem::path& path) {
  const std::string text = files::read(path, kMaxNodesBytes);
  try {
    const auto json = nlohmann::json::parse(text);
    return {nodes_of(json.at("inputs")), nodes_of(json.at("outputs"))};
  } catch (const std::exception& fault) {
    throw Error(
        ExitCode::kBadData, "infer",
        fmt::format("{}: does not tell a network's inputs and outputs: {}; export the model "
                    "anew",
                    path.string(), fault.what()));
  }
}

std::vector<at::Tensor> inputs_in(const coord::DataMap& feed, const IoNodes& nodes,
                                  const std::string& source) {
  std::vector<at::Tensor> inputs;
  for (const IoNode& node : nodes.inputs) {
    const coord::DataValue* value = feed.find(node.name);
    // Data sets always call it `inputs`, while a traced module may have any name.
    if (value == nullptr && nodes.inputs.size() == 1) value = feed.find("inputs");
    const std::string wanted = fmt::format("{} {}", dtype_name(node.dtype), shape_text(node.shape));
    if (value == nullptr)
      throw Error(ExitCode::kBadData, "infer",
                  fmt::format("{}: the network's input '{}' is {}, and the feed has no such key: "
                              "it gives {}",
                              source, node.name, wanted, keys_text(feed)));
    const auto* tensor = std::get_if<at::Tensor>(value);
    if (tensor == nullptr || !fits(*tensor, node))
      throw Error(
          ExitCode::kBadData, "infer",
          fmt::format("{}: the network's input '{}' is {}, the feed gives {}: feed what the "
                      "network was trained on",
                      source, node.name, wanted, value_text(*value)));
    inputs.push_back(*tensor);
  }
  return inputs;
}

}  // namespace lockstep::infer
