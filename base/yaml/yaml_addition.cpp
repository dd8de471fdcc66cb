// Part of YamlDocument that reads additions: texts from `--set` or the environment with priority
// over the document. An addition is parsed together with the document, so that its aliases find the
// anchors.

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/yaml/yaml_check.h"
#include "base/yaml/yaml_document.h"
#include "base/yaml/yaml_text.h"

namespace lockstep {
namespace {

constexpr int kStep = 2;  // columns per level

/// Indents all lines of the text except the first.
std::string indented(std::string_view text, int indent) {
  std::string out;
  for (const char letter : text) {
    if (!out.empty() && out.back() == '\n' && letter != '\n' && letter != '\r')
      out.append(static_cast<size_t>(indent), ' ');
    out.push_back(letter);
  }
  return out;
}

/// Writes the keys of the path, one per line, then the text after the last.
std::string as_written(const YamlAddition& addition, int column) {
  std::string yaml;
  for (const std::string& key : addition.path) {
    if (!yaml.empty()) yaml += "\n";
    yaml.append(static_cast<size_t>(column), ' ').append(key).append(":");
    column += kStep;
  }
  // A line break before the text must count as one of the text's.
  return yaml + indented(" " + addition.text, column) + "\n";
}

/// Returns the last pair of the tree if it leads along the path to one value.
std::optional<YamlPair> last_pair(const YAML::Node& root, const std::vector<std::string>& path) {
  if (!root.IsMap()) return std::nullopt;
  YamlPair last({}, {});
  for (const auto& pair : root) last.reset(pair.first, pair.second);
  YamlPair at = last;
  for (size_t i = 0; i < path.size(); ++i) {
    if (!at.key.IsScalar() || at.key.Scalar() != path[i]) return std::nullopt;
    if (i + 1 == path.size()) return last;
    if (!at.value.IsMap() || at.value.size() != 1) return std::nullopt;
    const auto inner = *at.value.begin();
    at.reset(inner.first, inner.second);
  }
  return std::nullopt;
}

}  // namespace

bool YamlDocument::AdditionPlace::holds(const YAML::Mark& mark) const {
  return mark.line > value_line || (mark.line == value_line && mark.column >= value_column);
}

std::string YamlDocument::text_before(int line) const {
  std::string yaml;
  if (root_column_ >= 0)
    yaml = std::string(
               static_cast<size_t>(std::count(
                   text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(part_.begin), '\n')),
               '\n') +
           text_.substr(part_.begin, part_.end - part_.begin);
  // The lines before an addition keep the document's numbers, so that marks stay unique.
  const auto num_lines = std::count(yaml.begin(), yaml.end(), '\n');
  return yaml.append(static_cast<size_t>(line - num_lines), '\n');
}

std::optional<YamlPair> YamlDocument::parse_addition(const YamlAddition& addition,
                                                     Diagnostics* faults) {
  const auto room = kMaxYamlBytes - static_cast<int64_t>(text_.size());
  if (!text_is_sound(addition.origin, addition.text, room, faults)) return std::nullopt;
  // Columns and lines are those of the document, so that marks of both are unique.
  const int column = std::max(root_column_, 0);
  const auto num_keys = static_cast<int>(addition.path.size());
  const int last_column = column + kStep * (num_keys - 1);
  const AdditionPlace place{
      .origin = addition.origin,
      .text = addition.text,
      .first_line = num_lines_,
      .value_line = num_lines_ + num_keys - 1,
      .value_column = last_column + static_cast<int>(addition.path.back().size()) + 2,
      .indent = last_column + kStep};
  const std::string written = as_written(addition, column);
  num_lines_ += static_cast<int>(std::count(written.begin(), written.end(), '\n'));
  additions_.push_back(place);
  const std::string yaml = text_before(place.first_line) + written;

  bool is_sound = true;
  const auto refuse = [&](const YAML::Mark& mark, std::string message) {
    faults->add(fault_at(mark, std::move(message)));
    is_sound = false;
  };
  // check_events() sees the document too, which was checked before; its faults are skipped.
  try {
    check_events(yaml, [&](const YAML::Mark& mark, std::string message) {
      if (place.holds(mark)) refuse(mark, std::move(message));  // else the document has the key
    });
    std::optional<YamlPair> pair = last_pair(YAML::Load(yaml), addition.path);
    if (!pair) faults->add({addition.origin, 0, 0, "is not one value", ""});
    return is_sound ? pair : std::nullopt;
  } catch (const YamlCheck::Stop& stop) {
    refuse(stop.mark, stop.message);
  } catch (const YAML::Exception& fault) {
    refuse(fault.mark, parser_hint(fault_at(fault.mark, "").source_line, fault.msg));
  }
  return std::nullopt;
}

const YamlDocument::AdditionPlace* YamlDocument::addition_at(const YAML::Mark& mark) const {
  const AdditionPlace* found = nullptr;
  // Additions are in order of their lines; the last one that begins before the mark has it.
  for (const AdditionPlace& place : additions_)
    if (place.first_line <= mark.line) found = &place;
  return found;
}

Fault YamlDocument::fault_in(const AdditionPlace& place, const YAML::Mark& mark,
                             std::string message) const {
  Fault fault{place.origin, 0, 0, std::move(message), "", mark.line, mark.column};
  if (!place.holds(mark)) return fault;  // at its path, which the origin names
  const int line = mark.line - place.value_line;
  const auto last_line = std::count(place.text.begin(), place.text.end(), '\n');
  if (line > last_line) return fault;  // after its end, where nothing is written
  fault.line = line + 1;
  fault.column = mark.column - (line == 0 ? place.value_column : place.indent) + 1;
  fault.source_line = line_at(mark).substr(0, kMaxShownBytes);
  return fault;
}

bool YamlDocument::says_null(const YAML::Node& node) const {
  // yaml-cpp reports an empty value as null too, so the text decides.
  if (!node.IsDefined() || !node.IsNull() || node.Mark().is_null()) return false;
  const Fault place = fault_at(node.Mark(), "");
  std::string_view text = line_at(node.Mark());
  text.remove_prefix(
      std::min(static_cast<size_t>(std::max<int64_t>(place.column, 1) - 1), text.size()));
  if (text.starts_with('&')) {  // an anchor may precede it
    text.remove_prefix(std::min(text.find(' '), text.size()));
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  const std::string_view word = text.substr(0, text.find_first_of(" \t,]}#"));
  return word == "null" || word == "~" || word == "Null" || word == "NULL";
}

std::string YamlDocument::place_text(const YAML::Mark& mark) const {
  const AdditionPlace* place = addition_at(mark);
  return place != nullptr ? place->origin : fmt::format("line {}", mark.line + 1);
}

}  // namespace lockstep
