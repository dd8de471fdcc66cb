#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/yaml/path_beside.h"
#include "estimator/estimator.h"
#include "estimator/open_plugin.h"
#include "estimator/user_code.h"

namespace lockstep::estimator {
namespace {

/// Reads model: {type: plugin, path: lib.so, name: my_net, ...}, a row of the plug-in found by its
/// name.
model::MakeModel read_plugin_model(ConfigReader* in) {
  std::string path, name;
  in->require("path");
  in->require("name");
  in->read("path", &path, "plugin: the shared object; also looked for beside the run file");
  in->read("name", &name, "plugin: which of its networks; the network's own keys stand beside it");
  // require() has reported the missing key. A plug-in's row `plugin` would recurse.
  if (path.empty() || name.empty() || name == "plugin") return {};
  const std::string file = path_beside(in->document(), path).string();
  (void)open_plugin(file);
  const model::ModelType* type = model::model_types().find(name);
  if (type == nullptr) {
    in->fault("name", fmt::format("'{}.name': {} adds no network '{}'{}", in->path(), file, name,
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
std::string text_at(const YAML::Node& map, const char* key) {
  if (!map.IsMap()) return "";
  const YAML::Node node = map[key];
  return node.IsDefined() && node.IsScalar() ? node.Scalar() : "";
}

// Faults of the file are found later, so whatever is not a path is ignored here.
std::vector<std::string> paths_in(const YAML::Node& root) {
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

}  // namespace

void add_types() {
  [[maybe_unused]] static const bool added = [] {
    model::model_types().add({.name = "plugin", .read = read_plugin_model});
    data::dataset_types().add(
        {.name = "estimator", .read = [](ConfigReader*, data::DatasetUse) -> data::MakeDataset {
           return [](const data::DatasetInputs&) -> std::unique_ptr<data::Dataset> {
             throw Error(ExitCode::kConfig, "data",
                         "data of type estimator is what an estimator brings, and none is named: "
                         "give estimator.path, or --estimator=LIB");
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
