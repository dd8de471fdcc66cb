#include "base/yaml/yaml_writer.h"

#include <algorithm>
#include <string_view>

#include <yaml-cpp/emitter.h>
#include <yaml-cpp/yaml.h>

namespace lockstep {
namespace {

constexpr std::string_view kPlainTag = "?";  ///< yaml-cpp's tag of a plain scalar of a document

/// True if `|` preserves the text: lines of printable characters, each with a line end.
bool is_lines(std::string_view text) {
  return text.size() > 1 && text.front() != ' ' && text.front() != '\n' && text.back() == '\n' &&
         text[text.size() - 2] != '\n' &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == '\n' || (c >= 0x20 && c != 0x7f); });
}

/// Writes a node and its children.
void write(const YAML::Node& node, YAML::Emitter* out) {
  if (node.IsMap()) {
    *out << YAML::BeginMap;
    for (const auto& pair : node) {
      *out << YAML::Key;
      write(pair.first, out);
      *out << YAML::Value;
      write(pair.second, out);
    }
    *out << YAML::EndMap;
  } else if (node.IsSequence()) {
    *out << YAML::BeginSeq;
    for (const YAML::Node& item : node) write(item, out);
    *out << YAML::EndSeq;
  } else if (!node.IsScalar()) {
    *out << YAML::Null;
  } else if (node.Tag() == kPlainTag) {
    *out << node.Scalar();
  } else if (is_lines(node.Scalar())) {
    *out << YAML::Literal << node.Scalar();
  } else {
    *out << YAML::DoubleQuoted << node.Scalar();
  }
}

}  // namespace

std::string yaml_text(const YAML::Node& node) {
  YAML::Emitter out;
  write(node, &out);
  return out.c_str() + std::string("\n");
}

}  // namespace lockstep
