#include "python/python_args.h"

#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "base/yaml/path_beside.h"

namespace lockstep::python {
// `args` of the run file reach Python as JSON. YAML types are kept: quoted scalars stay texts.
namespace {

using Json = nlohmann::ordered_json;

/// Value of a plain scalar by the run file's YAML rules.
Json value_of_plain(const std::string& text) {
  if (text.empty() || text == "~" || text == "null") return nullptr;
  if (const auto flag = parse_bool(text)) return *flag;
  if (const auto number = parse_integer(text)) return *number;
  if (const auto number = parse_number(text)) return *number;
  return text;
}

Json json_of(const YAML::Node& node) {
  if (node.IsMap()) {
    Json map = Json::object();
    for (const auto& entry : node) map[entry.first.Scalar()] = json_of(entry.second);
    return map;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const auto& item : node) list.push_back(json_of(item));
    return list;
  }
  if (!node.IsScalar()) return nullptr;
  // yaml-cpp tags quoted scalars with "!": they stay texts.
  return node.Tag() == "!" ? Json(node.Scalar()) : value_of_plain(node.Scalar());
}

}  // namespace

std::string json_of_plain(const std::string& text) { return value_of_plain(text).dump(); }

PythonArgs read_python_args(ConfigReader* in) {
  PythonArgs all;
  in->require("path");
  in->require("name");
  in->read("path", &all.path, "python: the .py file; also looked for beside the run file");
  all.path = path_beside(in->document(), all.path).string();
  in->read("name", &all.name, "python: the class in it, or a function that makes the object");
  const YAML::Node args = in->take("args", "map", "python: keyword arguments for it");
  if (args.IsDefined() && !args.IsNull()) {
    if (args.IsMap())
      all.args = json_of(args).dump();
    else
      in->fault("args", "'" + in->path() + ".args' must be a map of keyword arguments");
  }
  in->read("python", &all.python,
           "python: the interpreter; default the active virtual environment's, else python3, else "
           "the one beside LibTorch");
  return all;
}

}  // namespace lockstep::python
