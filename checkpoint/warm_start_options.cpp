#include "checkpoint/warm_start_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::checkpoint {
namespace {

constexpr const char* kNames = "warm_start_names";

std::string slashes(std::string name) {
  std::replace(name.begin(), name.end(), '.', '/');
  return name;
}

void read_names(ConfigReader* in, std::map<std::string, std::string>* names) {
  const YAML::Node node =
      in->take(kNames, "map of names",
               "variables or parts of warm_start_ckpt and what they are here: {dense_1/kernel: "
               "classifier/weight, trunk: blocks}");
  if (!node.IsDefined()) return;
  bool is_good = node.IsMap();
  if (is_good)
    for (const auto& pair : node) {
      is_good = is_good && pair.first.IsScalar() && pair.second.IsScalar() &&
                !pair.first.Scalar().empty() && !pair.second.Scalar().empty();
      if (is_good) names->emplace(pair.first.Scalar(), slashes(pair.second.Scalar()));
    }
  if (!is_good)
    in->fault(kNames, fmt::format("'{}.{}' must be a map from names there to names here",
                                  in->path(), kNames));
}

}  // namespace

std::optional<std::string> WarmStartOptions::name_there(const std::string& variable) const {
  const std::pair<const std::string, std::string>* deepest = nullptr;
  for (const auto& rule : warm_start_names) {
    const std::string& here = rule.second;
    const bool holds = variable == here || variable.starts_with(here + "/");
    if (holds && (deepest == nullptr || here.size() > deepest->second.size())) deepest = &rule;
  }
  if (deepest == nullptr) return std::nullopt;
  return deepest->first + variable.substr(deepest->second.size());
}

WarmStartOptions read_warm_start_options(ConfigReader* in) {
  WarmStartOptions options;
  in->read("warm_start_ckpt", &options.warm_start_ckpt,
           "a checkpoint, Lockstep's or TensorFlow's, or a folder of them, whose weights a new run "
           "begins with; a run with saves of its own goes on from those");
  options.checkpoint_restore_scopes =
      NameScopes::read(in, "checkpoint_restore_scopes",
                       "parts of the model that warm_start_ckpt fills, as a list or with commas "
                       "between; default all");
  options.checkpoint_exclude_scopes =
      NameScopes::read(in, "checkpoint_exclude_scopes",
                       "parts of the model that warm_start_ckpt does not fill, whatever "
                       "checkpoint_restore_scopes says");
  in->read_choice("warm_start_kernels", &options.warm_start_kernels, {"lockstep", "tensorflow"},
                  "how weights lie in warm_start_ckpt; tensorflow: [inputs, outputs] and [rows, "
                  "columns, inputs, outputs]");
  read_names(in, &options.warm_start_names);
  const bool has_scopes =
      !options.checkpoint_restore_scopes.empty() || !options.checkpoint_exclude_scopes.empty();
  if (has_scopes && options.warm_start_ckpt.empty())
    in->fault("warm_start_ckpt",
              "'checkpoint.checkpoint_restore_scopes' and 'checkpoint_exclude_scopes' say what "
              "'checkpoint.warm_start_ckpt' fills: name one");
  return options;
}

}  // namespace lockstep::checkpoint
