// The stamp in the file is read before dlopen(), so that no code of an incompatible plug-in runs.
#include "estimator/open_plugin.h"

#include <filesystem>

#include <dlfcn.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/diagnostics.h"
#include "base/digest.h"
#include "base/files/files.h"
#include "base/process.h"
#include "base/yaml/yaml_document.h"
#include "estimator/estimator.h"
#include "estimator/plugin.h"

namespace lockstep::estimator {
namespace {

constexpr size_t kMaxShownBytes = 200;

using AddRows = void (*)();

/// File whose code remains in this process.
struct Library {
  std::string file, sha256;
  AddRows add_rows = nullptr;
};

struct Opened {
  std::deque<Library> libraries;
  std::deque<Plugin> plugins;  // of this run; a deque keeps their addresses
};
Opened& opened() {
  static Opened one;
  return one;
}

/// Reset between jobs; the tables drop the rows of plug-ins too (job_server/job_run.cpp).
const ProcessState plugins_of_run("plug-ins of the run", [] { opened().plugins.clear(); });

Error refusal(const std::string& path, const std::string& why) {
  return {ExitCode::kConfig, "plugin", path + ": " + why};
}

/// Returns the stamp in the file, without running any of its code; empty if there is none.
std::string stamp_in(const std::string& bytes) {
  const size_t mark = bytes.find(LOCKSTEP_PLUGIN_MARK);
  if (mark == std::string::npos) return "";
  const std::string stamp =
      bytes.c_str() + mark + std::string_view(LOCKSTEP_PLUGIN_MARK).size();  // up to the zero
  return stamp.substr(0, kMaxShownBytes);
}

void require_fit(const std::string& path, const std::string& stamp) {
  if (stamp.empty())
    throw refusal(path,
                  "this file is not a plug-in of Lockstep: its source needs "
                  "LOCKSTEP_ESTIMATOR(...) or LOCKSTEP_PLUGIN(...) of estimator/plugin.h");
  if (stamp != LOCKSTEP_PLUGIN_STAMP)
    throw refusal(
        path,
        fmt::format(
            "was built for {}; this program is {}: rebuild it with the headers of this program",
            stamp, LOCKSTEP_PLUGIN_STAMP));
}

/// Opens the library. Its symbols are searched in the program first (docs/decisions/0027).
AddRows open_library(const std::string& path, const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw refusal(path, "cannot be opened: " + dl_error());
  const auto add_rows = reinterpret_cast<AddRows>(dlsym(library, "lockstep_plugin_add_rows"));
  if (add_rows == nullptr) throw refusal(path, "has no entry: " + dl_error());
  return add_rows;
}

/// Returns the function that adds the rows of this file. An earlier run of this process may have
/// opened it. The code remains, and dlopen() identifies it by the file's name. So a rebuilt file
/// cannot be opened here.
AddRows find_or_open(const std::string& path, const std::string& sha256) {
  const std::string file = std::filesystem::absolute(path).lexically_normal().string();
  for (const Library& known : opened().libraries) {
    if (known.sha256 == sha256) return known.add_rows;
    if (known.file == file)
      throw Error(ExitCode::kUnavailable, "plugin",
                  path + ": was rebuilt after this process opened it; restart the server");
  }
  opened().libraries.push_back({file, sha256, open_library(path, file)});
  return opened().libraries.back().add_rows;
}

}  // namespace

const Plugin& open_plugin(const std::string& path) {
  if (!files::is_file(path))
    throw Error(ExitCode::kInputMissing, "plugin",
                fmt::format("{}: no such file, which the run file or the command line "
                            "names as a plug-in",
                            path));
  const std::string bytes = files::read(path);
  const std::string sha256 = sha256_hex(bytes);
  for (const Plugin& known : opened().plugins)
    if (known.sha256 == sha256) return known;
  require_fit(path, stamp_in(bytes));
  const AddRows add_rows = find_or_open(path, sha256);
  // Rows are only appended, so the new ones follow these.
  const size_t num_before = estimator_types().names().size();
  run_user_code("plug-in " + path, add_rows);
  const std::vector<std::string> names = estimator_types().names();
  return opened().plugins.emplace_back(
      Plugin{path, sha256, {names.begin() + static_cast<std::ptrdiff_t>(num_before), names.end()}});
}

const std::deque<Plugin>& opened_plugins() { return opened().plugins; }

/// Reads model: {type: plugin, path: lib.so, name: my_net, ...}, a row of the plug-in found by its
/// name.
static model::MakeModel read_plugin_model(ConfigReader* in) {
  std::string path, name;
  in->require("path");
  in->require("name");
  in->read("path", &path, "plugin: shared object");
  in->read("name", &name, "plugin: network in it; its own keys follow in this section");
  // require() has reported the missing key. A plug-in's row `plugin` would recurse.
  if (path.empty() || name.empty() || name == "plugin") return {};
  const std::string file = path_beside(in->document(), path).string();
  (void)open_plugin(file);
  const model::ModelType* type = model::model_types().find(name);
  if (type == nullptr) {
    in->fault("name", fmt::format("'{}.name': {} has no network '{}'{}", in->path(), file, name,
                                  did_you_mean(name, model::model_types().names())));
    return {};
  }
  const std::string where = fmt::format("network {} of {}", name, file);
  return run_user_code(where, [&]() -> model::MakeModel {
    return [make = type->read(in), where](const model::ModelInputs& data) {
      return run_user_code(where, [&] { return make(data); });
    };
  });
}

/// Returns a text in a map; empty if there is none.
static std::string text_at(const YAML::Node& map, const char* key) {
  if (!map.IsMap()) return "";
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

// Faults of the file are found later, so whatever is not a path is ignored here.
static std::vector<std::string> paths_in(const YAML::Node& root) {
  std::vector<std::string> paths;
  if (!root.IsMap()) return paths;
  const YAML::Node plugins = root["plugins"];
  if (plugins.IsDefined() && plugins.IsScalar()) paths.push_back(plugins.Scalar());
  if (plugins.IsDefined() && plugins.IsSequence())
    for (const YAML::Node& item : plugins)
      if (item.IsScalar()) paths.push_back(item.Scalar());
  const YAML::Node model = root["model"], estimator = root["estimator"];
  if (model.IsDefined() && text_at(model, "type") == "plugin")
    paths.push_back(text_at(model, "path"));
  if (estimator.IsDefined()) paths.push_back(text_at(estimator, "path"));
  std::erase_if(paths, [](const std::string& path) { return path.empty(); });
  return paths;
}

void add_types() {
  [[maybe_unused]] static const bool added = [] {
    model::model_types().add({.name = "plugin", .read = read_plugin_model});
    data::dataset_types().add(
        {.name = "estimator", .read = [](ConfigReader*, data::DatasetUse) -> data::MakeDataset {
           return [](const data::DatasetInputs&) -> std::unique_ptr<data::Dataset> {
             throw Error(ExitCode::kConfig, "data",
                         "data of type estimator needs an estimator: give estimator.path, or "
                         "--estimator=LIB");
           };
         }});
    return true;
  }();
}

std::vector<std::string> open_plugins_of(const YamlDocument& document) {
  std::vector<std::string> lines;
  for (const std::string& path : paths_in(document.root())) {
    const Plugin& plugin = open_plugin(path_beside(document, path).string());
    lines.push_back(fmt::format("plugin {} sha256={}", path, plugin.sha256));
  }
  return lines;
}

}  // namespace lockstep::estimator
