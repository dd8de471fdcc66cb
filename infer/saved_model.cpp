#include "infer/saved_model.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "infer/sparse/onnx_graph.h"

// Opening of exports, and their inputs and outputs (io_nodes.json).
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
  throw std::invalid_argument("unknown type '" + name + "'");
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
  const auto fits_one = [](int64_t extent, int64_t wanted) {
    return wanted == IoNode::kAny || wanted == extent;
  };
  const at::ScalarType dtype = tensor.scalar_type();
  const bool has_type = node.dtype == IoNode::kFloatOrInt
                            ? dtype == at::kFloat || dtype == at::kLong
                            : dtype == node.dtype;
  return has_type && std::ranges::equal(tensor.sizes(), node.shape, fits_one);
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
  return dtype == IoNode::kFloatOrInt ? "float32 or int64" : toString(dtype);
}

IoNodes read_io_nodes(const std::filesystem::path& path) {
  const std::string text = files::read(path, kMaxNodesBytes);
  try {
    const auto json = nlohmann::json::parse(text);
    return {nodes_of(json.at("inputs")), nodes_of(json.at("outputs"))};
  } catch (const std::exception& fault) {
    throw Error(
        ExitCode::kBadData, "infer",
        fmt::format(
            "{}: does not describe a network's inputs and outputs: {}; export the model again",
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
      throw Error(
          ExitCode::kBadData, "infer",
          fmt::format("{}: the network's input '{}' is {}, and the feed has no such key: it has {}",
                      source, node.name, wanted, keys_text(feed)));
    const auto* tensor = std::get_if<at::Tensor>(value);
    if (tensor == nullptr || !fits(*tensor, node))
      throw Error(ExitCode::kBadData, "infer",
                  fmt::format("{}: the network's input '{}' is {}, the feed has {}: use inputs "
                              "like those of training",
                              source, node.name, wanted, value_text(*value)));
    inputs.push_back(*tensor);
  }
  return inputs;
}

// An export is trusted only if its manifest confirms it: the manifest is written last, so a folder
// without one is incomplete. A digest detects later changes. TorchScript archives are code, so a
// wrong file must never be loaded.
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kMaxManifestBytes = 1 << 26;  // one line per tensor
constexpr const char *kModelFile = "model.pt", *kOnnxFile = "model.onnx";

[[noreturn]] void distrust(const fs::path& path, const std::string& what) {
  throw Error(ExitCode::kBadData, "infer",
              fmt::format("{}: {}; export the model again", path.string(), what));
}

/// Numbers of a version: 0.10.2 -> {0, 10, 2}. Anything else counts as 0.
static std::array<int64_t, 3> version_numbers(const std::string& version) {
  std::array<int64_t, 3> numbers{};
  const std::vector<std::string> parts = split(version, '.');
  for (size_t i = 0; i < std::min(numbers.size(), parts.size()); ++i)
    numbers[i] = parse_integer(parts[i]).value_or(0);
  return numbers;
}

static Json manifest_of(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  if (!files::exists(path)) distrust(folder, "contains no manifest.json, so it may be incomplete");
  // No exceptions: `false` makes a faulty text a discarded value, which is not an object.
  Json json = Json::parse(files::read(path, kMaxManifestBytes), nullptr, false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object())
    distrust(path, "is not a manifest of a model that a run published");
  return json;
}

static std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Returns a count that is 0 or more; nullopt if it is missing or not such a number.
static std::optional<int64_t> count_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const std::optional<int64_t> count = parse_integer(found->dump());  // none above int64
  return count && *count >= 0 ? count : std::nullopt;
}

static void require_known_version(const fs::path& folder, const Json& manifest,
                                  const std::string& program_version) {
  const std::string written_by = text_of(manifest, "lockstep");
  if (version_numbers(written_by) > version_numbers(program_version))
    throw Error(
        ExitCode::kBadData, "infer",
        fmt::format("{}: was written by Lockstep {}, this is {}: use that version or a newer one",
                    folder.string(), written_by, program_version));
}

/// Reads a file of an export and compares it with the manifest's size and digest.
static std::string verified(const fs::path& folder, const Json& manifest, const std::string& name) {
  const fs::path path = folder / name;
  const auto found = manifest["files"].find(name);
  if (found == manifest["files"].end() || !found->is_object())
    distrust(folder / "manifest.json", "does not list " + name);
  if (!files::exists(path)) distrust(path, "is missing, although the manifest lists it");
  // Reads the bytes once: what was verified is what is loaded.
  std::string bytes = files::read(path);
  const std::optional<int64_t> wanted = count_of(*found, "num_bytes");
  if (!wanted) distrust(folder / "manifest.json", "has no num_bytes of " + name);
  if (static_cast<int64_t>(bytes.size()) != *wanted)
    distrust(path, fmt::format("has {} bytes, its manifest says {}", bytes.size(), *wanted));
  if (sha256_hex(bytes) != text_of(*found, "sha256"))
    distrust(path, "is not the file listed in its manifest (SHA-256)");
  return bytes;
}

/// Derives the nodes from the manifest's shapes, for exports without io_nodes.json.
static IoNodes nodes_of_manifest(const fs::path& folder, const Json& manifest,
                                 const std::string& input) {
  try {
    IoNode in{.name = input, .shape = {IoNode::kAny}};
    for (const auto& extent : manifest.at("input_shape")) in.shape.push_back(extent.get<int64_t>());
    return {
        {in},
        {{.name = "logits", .shape = {IoNode::kAny, manifest.at("num_classes").get<int64_t>()}}}};
  } catch (const Json::exception&) {
    distrust(folder, "neither io_nodes.json nor the manifest lists the network's inputs");
  }
}

static std::vector<std::string> class_names_of(const fs::path& folder, const Json& manifest) {
  const auto found = manifest.find("class_names");
  if (found == manifest.end()) return {};
  try {
    return found->get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    distrust(folder / "manifest.json", "its class_names are not a list of strings");
  }
}

/// Requires a method forward() that can be called with this number of inputs.
static void require_inputs(const torch::jit::Module& module, size_t num_inputs,
                           const std::string& source) {
  const auto forward = module.find_method("forward");
  if (!forward) distrust(source, "its network has no method forward()");
  const auto& arguments = forward->function().getSchema().arguments();  // [0]: the module
  const auto num_needed = static_cast<size_t>(
      std::count_if(arguments.begin(), arguments.end(),
                    [](const c10::Argument& one) { return !one.default_value().has_value(); }));
  if (num_inputs + 1 < num_needed || num_inputs + 1 > arguments.size())
    distrust(
        source,
        fmt::format(
            "its network's forward() takes {} input(s), io_nodes.json or the manifest names {}",
            arguments.size() - 1, num_inputs));
}

static IoNodes nodes_beside(const fs::path& folder, const Json& manifest,
                            const std::string& input) {
  std::error_code ignored;
  // The folder may be relative, such as `.`: only a canonical path has all its parents.
  const fs::path run = fs::canonical(folder, ignored).parent_path().parent_path();
  for (const fs::path& path : {folder / "io_nodes.json", run / "checkpoints" / "io_nodes.json"})
    if (files::exists(path)) return read_io_nodes(path);
  return nodes_of_manifest(folder, manifest, input);
}

std::shared_ptr<torch::jit::Module> load_torchscript(const std::string& bytes,
                                                     const std::string& source) {
  // From memory, not from the path: these bytes were verified.
  std::istringstream in(bytes);
  try {
    auto module = std::make_shared<torch::jit::Module>(torch::jit::load(in));
    module->eval();
    return module;
  } catch (const std::exception& fault) {
    const std::string text = fault.what();
    distrust(source, "LibTorch cannot load it as TorchScript: " + text.substr(0, text.find('\n')));
  }
}

std::string input_name(const torch::jit::Module& module) {
  const auto forward = module.find_method("forward");
  if (!forward) return "inputs";
  const auto& arguments = forward->function().getSchema().arguments();
  return arguments.size() < 2 ? "inputs" : arguments[1].name();
}

LoadedNetwork open_saved_model(const fs::path& folder, const std::string& program_version,
                               bool with_graph) {
  if (!files::is_folder(folder))
    throw Error(ExitCode::kInputMissing, "infer",
                fmt::format("{}: no such folder; name one of RUN/saved_models, or `latest`",
                            folder.string()));
  const Json manifest = manifest_of(folder);
  require_known_version(folder, manifest, program_version);
  const std::optional<int64_t> step = count_of(manifest, "global_step");
  if (!step) distrust(folder / "manifest.json", "has no global_step");
  LoadedNetwork network{.source = folder.string(), .step = *step};
  network.class_names = class_names_of(folder, manifest);
  network.module = load_torchscript(verified(folder, manifest, kModelFile), network.source);
  network.nodes = nodes_beside(folder, manifest, input_name(*network.module));
  require_inputs(*network.module, network.nodes.inputs.size(), network.source);
  if (with_graph && manifest["files"].contains(kOnnxFile))
    network.graph = std::make_shared<OnnxGraph>(
        read_onnx(verified(folder, manifest, kOnnxFile), network.source, folder));
  return network;
}

LoadedNetwork open_onnx(const fs::path& file) {
  if (!files::exists(file))
    throw Error(ExitCode::kInputMissing, "infer", file.string() + ": no such file");
  LoadedNetwork network{.source = file.string()};
  auto graph =
      std::make_shared<OnnxGraph>(read_onnx(files::read(file), network.source, file.parent_path()));
  const auto nodes_of_values = [](const std::vector<OnnxValue>& values) {
    std::vector<IoNode> nodes;
    for (const OnnxValue& value : values)
      nodes.push_back({.name = value.name, .shape = value.shape, .dtype = value.dtype});
    return nodes;
  };
  network.nodes = {nodes_of_values(graph->inputs), nodes_of_values(graph->outputs)};
  network.graph = std::move(graph);
  return network;
}

LoadedNetwork open_inference_graph(const fs::path& checkpoints) {
  const fs::path file = checkpoints / "inference_graph";
  if (!files::exists(file))
    throw Error(ExitCode::kInputMissing, "infer", file.string() + ": no such file");
  LoadedNetwork network{.source = file.string()};
  network.module = load_torchscript(files::read(file), network.source);
  network.nodes = read_io_nodes(checkpoints / "io_nodes.json");
  require_inputs(*network.module, network.nodes.inputs.size(), network.source);
  return network;
}

std::vector<int64_t> published_steps(const fs::path& saved_models) {
  std::vector<int64_t> steps;
  for (const std::string& name : files::list(saved_models)) {
    const auto step = parse_integer(name);
    if (step && *step >= 0 && name == std::to_string(*step)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

fs::path newest_saved_model(const fs::path& saved_models) {
  const std::vector<int64_t> steps = published_steps(saved_models);
  if (!steps.empty()) return saved_models / std::to_string(steps.back());
  throw Error(ExitCode::kInputMissing, "infer",
              fmt::format("{}: contains no export of a model; let the run publish exports "
                          "(export.after_evaluation), or name a checkpoint with --checkpoint",
                          saved_models.string()));
}

}  // namespace lockstep::infer
