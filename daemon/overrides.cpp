#include "daemon/overrides.h"

#include <cstdlib>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"

namespace lockstep::daemon {
namespace {

std::string variable_name(const std::string& path) {
  std::string name = "LOCKSTEP_" + path;
  for (char& c : name)
    c = c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// The same tree without places in a text, so that a fault does not point at a line of the file.
YAML::Node without_marks(const YAML::Node& node) {
  if (node.IsScalar()) return YAML::Node(node.Scalar());
  YAML::Node copy(node.Type());
  for (const auto& item : node) {
    if (node.IsMap())
      copy[item.first.Scalar()] = without_marks(item.second);
    else
      copy.push_back(without_marks(item));
  }
  return copy;
}

void collect(const YAML::Node& node, const std::string& path, std::vector<std::string>* lines) {
  if (node.IsMap()) {
    for (const auto& pair : node)
      collect(pair.second, path.empty() ? pair.first.Scalar() : path + "." + pair.first.Scalar(),
              lines);
  } else if (node.IsSequence()) {
    for (size_t i = 0; i < node.size(); ++i)
      collect(node[i], fmt::format("{}[{}]", path, i), lines);
  } else {
    lines->push_back(path + "=" + (node.IsScalar() ? node.Scalar() : "null"));
  }
  if (node.Tag().size() > 1) lines->push_back(path + "=" + node.Tag());  // a modifier's class
}

}  // namespace

Override parse_set(const std::string& text) {
  const size_t mark = text.find('=');
  if (mark == std::string::npos || mark == 0)
    throw Error(
        ExitCode::kUsage, "usage",
        "--set '" + text + "' must read path=value, e.g. --set optimizer.learning_rate=0.1");
  return {text.substr(0, mark), text.substr(mark + 1), "--set " + text};
}

std::vector<Override> overrides_from_environment(const std::vector<std::string>& field_paths) {
  std::vector<Override> found;
  for (const std::string& path : field_paths) {
    const std::string name = variable_name(path);
    if (const char* value = std::getenv(name.c_str())) found.push_back({path, value, name});
  }
  return found;
}

void apply_override(const Override& override_, YAML::Node root, Faults* faults) {
  const auto refuse = [&](const std::string& what) {
    faults->add({override_.origin, 0, 0, what, ""});
  };
  YAML::Node value;
  try {
    value = without_marks(YAML::Load(override_.value));
  } catch (const YAML::Exception& fault) {
    return refuse("the value is not YAML: " + fault.msg);
  }
  YAML::Node at = root;
  std::string rest = override_.path;
  for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    const YAML::Node next = at[rest.substr(0, dot)];
    if (next.IsDefined() && !next.IsMap() && !next.IsNull())
      return refuse("'" + rest.substr(0, dot) + "' is not a map of keys");
    at.reset(next);
    rest = rest.substr(dot + 1);
  }
  at[rest] = value;
}

std::vector<std::string> flat_settings(const YAML::Node& root) {
  std::vector<std::string> lines;
  collect(root, "", &lines);
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace lockstep::daemon
