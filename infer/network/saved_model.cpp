#include "infer/network/saved_model.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/yaml/config_reader.h"

namespace lockstep::infer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kMaxManifestBytes = 1 << 26;  // a line for each tensor

[[noreturn]] void distrust(const fs::path& path, const std::string& what) {
  throw Error(ExitCode::kBadData, "infer",
              fmt::format("{}: {}; export the model anew", path.string(), what));
}

/// 0.10.2 -> {0, 10, 2}; what is no number counts as 0.
std::array<int64_t, 3> version_numbers(const std::string& version) {
  std::array<int64_t, 3> numbers{};
  std::istringstream parts(version);
  std::string part;
  for (int64_t& number : numbers)
    if (std::getline(parts, part, '.')) number = parse_integer(part).value_or(0);
  return numbers;
}

Json manifest_of(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    distrust(folder, "holds no manifest.json, so that it is not known to be whole");
  Json json = Json::parse(files::read(path, kMaxManifestBytes), nullptr, false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object())
    distrust(path, "is no manifest of a model that a run published");
  return json;
}

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

void require_known_version(const fs::path& folder, const Json& manifest,
                           const std::string& program_version) {
  const std::string written_by = text_of(manifest, "lockstep");
  if (version_numbers(written_by) > version_numbers(program_version))
    throw Error(ExitCode::kBadData, "infer",
                fmt::format("{}: was written by Lockstep {}, this is {}: use that one or a newer "
                            "one",
                            folder.string(), written_by, program_version));
}

/// model.pt, which must be the file that the manifest tells of.
std::string verified_archive(const fs::path& folder, const Json& manifest) {
  const fs::path path = folder / "model.pt";
  const auto found = manifest["files"].find("model.pt");
  if (found == manifest["files"].end() || !found->is_object())
    distrust(folder / "manifest.json", "does not tell of model.pt");
  std::error_code ignored;
  if (!fs::exists(path, ignored)) distrust(path, "is not there, although the manifest tells of it");
  std::string bytes = files::read(path);
  const int64_t wanted = found->value("num_bytes", int64_t{-1});
  if (static_cast<int64_t>(bytes.size()) != wanted)
    distrust(path, fmt::format("has {} bytes, its manifest says {}", bytes.size(), wanted));
  if (sha256_hex(bytes) != text_of(*found, "sha256"))
    distrust(path, "is not the file that its manifest tells of (SHA-256)");
  return bytes;
}

/// What the manifest itself says of shapes.
IoNodes nodes_of_manifest(const fs::path& folder, const Json& manifest, const std::string& input) {
  try {
    IoNode in{.name = input, .shape = {IoNode::kAny}};
    for (const auto& extent : manifest.at("input_shape")) in.shape.push_back(extent.get<int64_t>());
    return {
        {in},
        {{.name = "logits", .shape = {IoNode::kAny, manifest.at("num_classes").get<int64_t>()}}}};
  } catch (const Json::exception&) {
    distrust(folder, "neither io_nodes.json nor the manifest tells what the network takes");
  }
}

IoNodes nodes_beside(const fs::path& folder, const Json& manifest, const std::string& input) {
  std::error_code ignored;
  const fs::path run = fs::canonical(folder, ignored).parent_path().parent_path();
  for (const fs::path& path : {folder / "io_nodes.json", run / "checkpoints" / "io_nodes.json"})
    if (fs::exists(path, ignored)) return read_io_nodes(path);
  return nodes_of_manifest(folder, manifest, input);
}

}  // namespace

std::shared_ptr<torch::jit::Module> load_torchscript(const std::string& bytes,
                                                     const std::string& source) {
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
  const auto& arguments = module.get_method("forward").function().getSchema().arguments();
  return arguments.size() < 2 ? "inputs" : arguments[1].name();
}

LoadedNetwork open_saved_model(const fs::path& folder, const std::string& program_version) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw Error(
        ExitCode::kInputMissing, "infer",
        fmt::format("{}: there is no such folder; name one of RUN/saved_models, or `latest`",
                    folder.string()));
  const Json manifest = manifest_of(folder);
  require_known_version(folder, manifest, program_version);
  LoadedNetwork network{.source = folder.string(),
                        .step = manifest.value("global_step", int64_t{0})};
  network.module = load_torchscript(verified_archive(folder, manifest), network.source);
  network.nodes = nodes_beside(folder, manifest, input_name(*network.module));
  return network;
}

fs::path newest_saved_model(const fs::path& saved_models) {
  int64_t newest = -1;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(saved_models, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto step = parse_integer(name);
    if (step && name == std::to_string(*step)) newest = std::max(newest, *step);
  }
  if (newest >= 0) return saved_models / std::to_string(newest);
  throw Error(ExitCode::kInputMissing, "infer",
              fmt::format("{}: holds no export of a model; let the run publish them "
                          "(export.after_evaluation), or name a save with --checkpoint",
                          saved_models.string()));
}

}  // namespace lockstep::infer
