#include "base/yaml/yaml_document.h"

#include <algorithm>

#include <fmt/format.h>
#include <glob.h>
#include <yaml-cpp/yaml.h>

#include "base/files/files.h"
#include "base/yaml/yaml_check.h"

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

// Additions: texts from `--set` or the environment with priority over the document. An addition is
// parsed together with the document, so that its aliases find the anchors.

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

/// True if a file exists or a pattern matches.
bool names_something(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return true;
  glob_t found{};
  const bool matches = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return matches;
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
  } catch (const YamlStop& stop) {
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
  } catch (const YamlStop& stop) {
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

std::string SourceLocation::text() const {
  return line > 0 ? fmt::format("{}:{}", file, line) : file;
}

SourceLocation location_of(const YamlDocument& document, const YAML::Node& node) {
  Fault fault = document.fault_at(node, "");
  return {std::move(fault.file), fault.line, fault.column, std::move(fault.source_line)};
}

std::filesystem::path path_beside(const YamlDocument& document,
                                  const std::filesystem::path& named) {
  if (named.empty() || named.is_absolute() || files::is_remote(named) || names_something(named))
    return named;
  const std::filesystem::path beside = std::filesystem::path(document.file()).parent_path() / named;
  return names_something(beside) ? beside : named;
}

}  // namespace lockstep
