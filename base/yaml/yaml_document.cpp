#include "base/yaml/yaml_document.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/files/files.h"
#include "base/yaml/yaml_check.h"
#include "base/yaml/yaml_text.h"

namespace lockstep {
namespace {

/// Returns the offsets of all lines.
std::vector<uint32_t> line_starts(std::string_view text) {
  // The parser counts columns from the first byte after a byte order mark.
  std::vector<uint32_t> starts{text.starts_with("\xEF\xBB\xBF") ? 3U : 0U};
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1))
    starts.push_back(static_cast<uint32_t>(at + 1));
  return starts;
}

/// Returns the YAML part of the text, on its original line numbers.
std::string yaml_of(const std::string& text, const TextPart& part) {
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(part.begin);
  const auto num_lines = static_cast<size_t>(std::count(text.begin(), begin, '\n'));
  return std::string(num_lines, '\n') + text.substr(part.begin, part.end - part.begin);
}

/// Returns the column of the keys of a map to which a further key can be added; -1 otherwise.
int column_of_keys(const YAML::Node& root, const std::string& yaml) {
  // A flow map {...} or a document end mark cannot be followed by another key.
  const bool is_open = root.IsMap() && root.size() > 0 &&
                       root.Style() == YAML::EmitterStyle::Block &&
                       yaml.find("\n...") == std::string::npos;
  return is_open ? root.begin()->first.Mark().column : -1;
}

}  // namespace

YamlDocument YamlDocument::parse(std::string file, std::string text, Diagnostics* faults) {
  const TextPart whole{0, text.size()};
  return parse_part(std::move(file), std::move(text), whole, faults);
}

YamlDocument YamlDocument::parse_part(std::string file, std::string text, TextPart part,
                                      Diagnostics* faults) {
  YamlDocument document;
  document.file_ = std::move(file);
  document.text_ = std::move(text);
  document.part_ = part;
  if (!text_is_sound(document.file_, document.text_, kMaxYamlBytes, faults)) return document;
  document.line_starts_ = line_starts(document.text_);
  document.num_lines_ = static_cast<int>(document.line_starts_.size());
  const std::string yaml = yaml_of(document.text_, part);
  const auto report = [&](const YAML::Mark& mark, std::string message) {
    faults->add(document.fault_at(mark, std::move(message)));
  };
  try {
    // Check first: YAML::Load() would build a tree of any size.
    if (check_events(yaml, report)) document.root_ = YAML::Load(yaml);
    if (document.root_.IsNull()) faults->add({document.file_, 0, 0, "is empty", ""});
    document.root_column_ = column_of_keys(document.root_, yaml);
  } catch (const YamlCheck::Stop& stop) {
    faults->add(document.fault_at(stop.mark, stop.message));
  } catch (const YAML::Exception& fault) {
    report(fault.mark, parser_hint(document.fault_at(fault.mark, "").source_line, fault.msg));
  }
  return document;
}

YamlDocument YamlDocument::load(const std::string& path, Diagnostics* faults) {
  return parse(path, read_text(path), faults);
}

std::string YamlDocument::read_text(const std::string& path) {
  return files::read(path, 64 * kMaxYamlBytes);
}

Fault YamlDocument::fault_at(const YAML::Mark& mark, std::string message) const {
  if (mark.is_null()) return {file_, 0, 0, std::move(message), ""};
  if (const AdditionPlace* place = addition_at(mark))
    return fault_in(*place, mark, std::move(message));
  return {file_,
          mark.line + 1,
          mark.column + 1,
          std::move(message),
          std::string(line_at(mark).substr(0, kMaxShownBytes)),
          mark.line,
          mark.column};
}

Fault YamlDocument::fault_at(const YAML::Node& node, std::string message) const {
  const YAML::Mark mark = node.IsDefined() ? node.Mark() : YAML::Mark::null_mark();
  const auto note = notes_.find({mark.line, mark.column});
  if (note != notes_.end() && !message.empty()) message += " (" + note->second + ")";
  return fault_at(mark, std::move(message));
}

Fault YamlDocument::fault_inside(const YAML::Node& scalar, size_t offset,
                                 std::string message) const {
  Fault fault = fault_at(scalar, std::move(message));
  if (fault.line == 0) return fault;
  // The scalar may be written differently in the source (quotes, escapes). Then the column stays at
  // its start.
  const size_t begin =
      fault.source_line.find(scalar.Scalar(), static_cast<size_t>(fault.column) - 1);
  if (begin != std::string::npos) fault.column = static_cast<int64_t>(begin + offset) + 1;
  return fault;
}

void YamlDocument::set_note(const YAML::Node& node, std::string note) {
  const YAML::Mark mark = node.Mark();
  if (!mark.is_null()) notes_[{mark.line, mark.column}] = std::move(note);
}

std::string_view YamlDocument::line_at(const YAML::Mark& mark) const {
  if (const AdditionPlace* place = addition_at(mark))
    return line_of(place->text, mark.line - place->value_line);
  const auto line = static_cast<size_t>(mark.line);
  return line < line_starts_.size() ? line_of(std::string_view(text_).substr(line_starts_[line]), 0)
                                    : std::string_view();
}

}  // namespace lockstep
