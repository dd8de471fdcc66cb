#include "base/yaml/yaml_writer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace lockstep {
namespace {

constexpr std::string_view kPlainTag = "?";  ///< yaml-cpp's, of a plain scalar of a document

bool is_word(std::string_view word) {
  constexpr std::array<std::string_view, 9> kOthers{"true", "false", "null", "yes", "no",
                                                    "on",   "off",   "y",    "n"};
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kOthers.begin(), kOthers.end(), lower) != kOthers.end();
}

/// Whether YAML reads it as this text, wherever it stands.
bool is_plain(std::string_view text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '/';
  };
  return !text.empty() &&
         (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '/') &&
         std::all_of(text.begin(), text.end(), fits) && !is_word(text);
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + "\"";
}

/// Whether `|` gives it back: lines that end, of printable characters.
bool is_lines(std::string_view text) {
  return text.size() > 1 && text.back() == '\n' && text[text.size() - 2] != '\n' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f);
         });
}

std::string literal(std::string_view text, size_t indent) {
  std::string out = "|2\n";  // however deep its own first line begins
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string_view line = text.substr(begin, end - begin);
    out += line.empty() ? "\n" : fmt::format("{}{}\n", std::string(indent, ' '), line);
    begin = end + 1;
  }
  out.pop_back();
  return out;
}

std::string scalar_text(const YAML::Node& node, size_t indent) {
  const std::string& text = node.Scalar();
  if (node.Tag() == kPlainTag || is_plain(text)) return text;
  return is_lines(text) ? literal(text, indent) : in_quotes(text);
}

std::string key_text(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  return node.Tag() == kPlainTag || is_plain(text) ? text : in_quotes(text);
}

/// `indent`: of the node's own lines.
void write(const YAML::Node& node, size_t indent, std::string* out);

/// Behind "key:" or "-", and the line's end. `below`: indent of what stands on further lines.
void write_value(const YAML::Node& node, size_t below, bool is_item, std::string* out) {
  if ((node.IsMap() || node.IsSequence()) && node.size() > 0) {
    std::string text;
    write(node, below, &text);
    *out += is_item ? " " + text.substr(below) : "\n" + text;
  } else if (node.IsScalar()) {
    *out += " " + scalar_text(node, below) + "\n";
  } else {
    *out += node.IsMap() ? " {}\n" : node.IsSequence() ? " []\n" : " null\n";
  }
}

void write(const YAML::Node& node, size_t indent, std::string* out) {
  const std::string blanks(indent, ' ');
  if (node.IsMap()) {
    for (const auto& pair : node) {
      *out += blanks + key_text(pair.first) + ":";
      write_value(pair.second, indent + 2, /*is_item=*/false, out);
    }
  } else {
    for (const YAML::Node& item : node) {
      *out += blanks + "-";
      write_value(item, indent + 2, /*is_item=*/true, out);
    }
  }
}

}  // namespace

std::string yaml_text(const YAML::Node& node) {
  std::string text;
  if (node.IsMap() || node.IsSequence())
    write(node, 0, &text);
  else
    text = scalar_text(node, 0) + "\n";
  return text;
}

}  // namespace lockstep
