#include "base/yaml_document.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files.h"
#include "base/yaml_check.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxShownBytes = 160;
constexpr size_t kMaxComparedBytes = 100;

/// Byte offset of the first byte that is not valid UTF-8, or npos.
size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::vector<uint32_t> line_starts(std::string_view text) {
  std::vector<uint32_t> starts{0};
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1))
    starts.push_back(static_cast<uint32_t>(at + 1));
  return starts;
}

/// The part of the text that is YAML, on the lines on which it stands in the whole.
std::string yaml_of(const std::string& text, const TextPart& part) {
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(part.begin);
  const auto num_lines = static_cast<size_t>(std::count(text.begin(), begin, '\n'));
  return std::string(num_lines, '\n') + text.substr(part.begin, part.end - part.begin);
}

/// True if the text holds a document. Throws YamlCheck::Stop and what the parser throws.
bool check_events(const std::string& yaml, const YamlDocument& document, Faults* faults) {
  YamlCheck check([&](const YAML::Mark& mark, std::string message) {
    faults->add(document.fault_at(mark, std::move(message)));
  });
  std::istringstream stream(yaml);
  YAML::Parser parser(stream);
  while (parser.HandleNextDocument(check)) {
  }
  return check.num_documents() > 0;
}

std::string parser_hint(std::string_view line, const std::string& message) {
  if (line.find('\t') != std::string_view::npos)
    return "a tab stands in this line: indent with spaces";
  if (message.find("anchor") != std::string::npos || message.find("alias") != std::string::npos)
    return message + " (a text that begins with '*' or '&' must be quoted)";
  return message;
}

}  // namespace

void Faults::add(Fault fault) {
  if (full()) return;
  if (fault.message.size() > kMaxMessageBytes) {
    fault.message.resize(kMaxMessageBytes);
    fault.message += "...";
  }
  list_.push_back(std::move(fault));
}

std::string Faults::text() const {
  std::string out;
  for (const Fault& fault : list_) {
    out += fault.file;
    if (fault.line > 0) out += fmt::format(":{}:{}", fault.line, fault.column);
    out += ": error: " + fault.message + "\n";
    if (!fault.source_line.empty())
      out += fmt::format("  {}\n  {:>{}}\n", fault.source_line, "^", fault.column);
  }
  return out + fmt::format("{}{} error{}; nothing was started", full() ? "at least " : "",
                           list_.size(), list_.size() == 1 ? "" : "s");
}

void Faults::throw_if_any(std::string_view area) const {
  if (!empty()) throw Error(ExitCode::kConfig, area, "the configuration has faults\n" + text());
}

YamlDocument YamlDocument::parse(std::string file, std::string text, Faults* faults) {
  const TextPart whole{0, text.size()};
  return parse_part(std::move(file), std::move(text), whole, faults);
}

YamlDocument YamlDocument::parse_part(std::string file, std::string text, TextPart part,
                                      Faults* faults) {
  YamlDocument document;
  document.file_ = std::move(file);
  document.text_ = std::move(text);
  if (!document.text_is_sound(faults)) return document;
  document.line_starts_ = line_starts(document.text_);
  const std::string yaml = yaml_of(document.text_, part);
  try {
    if (check_events(yaml, document, faults)) document.root_ = YAML::Load(yaml);
    if (document.root_.IsNull()) faults->add({document.file_, 0, 0, "is empty", ""});
  } catch (const YamlCheck::Stop& stop) {
    faults->add(document.fault_at(stop.mark, stop.message));
  } catch (const YAML::Exception& fault) {
    const int64_t line = fault.mark.is_null() ? 0 : fault.mark.line + 1;
    faults->add(document.fault_at(fault.mark, parser_hint(document.line_text(line), fault.msg)));
  }
  return document;
}

bool YamlDocument::text_is_sound(Faults* faults) const {
  if (text_.size() > static_cast<size_t>(kMaxFileBytes)) {
    faults->add({file_, 0, 0, "has more than 1 MiB", ""});
    return false;
  }
  const size_t bad = first_invalid_utf8(text_);
  if (bad == std::string_view::npos) return true;
  const auto line =
      1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
  // Without the source line: a terminal or a log reader need not cope with its bytes.
  faults->add({file_, line, 0,
               fmt::format("byte {} of the file is not valid UTF-8: save the file as UTF-8", bad),
               ""});
  return false;
}

YamlDocument YamlDocument::load(const std::string& path, Faults* faults) {
  return parse(path, read_text(path), faults);
}

std::string YamlDocument::read_text(const std::string& path) {
  return files::read(path, 64 * kMaxFileBytes);
}

Fault YamlDocument::fault_at(const YAML::Mark& mark, std::string message) const {
  if (mark.is_null()) return {file_, 0, 0, std::move(message), ""};
  return {file_, mark.line + 1, mark.column + 1, std::move(message), line_text(mark.line + 1)};
}

Fault YamlDocument::fault_at(const YAML::Node& node, std::string message) const {
  const YAML::Mark mark = node.IsDefined() ? node.Mark() : YAML::Mark::null_mark();
  if (mark.is_null()) {
    const bool added = node.IsDefined() && !origin_of_additions_.empty();
    return {added ? origin_of_additions_ : file_, 0, 0, std::move(message), ""};
  }
  const auto note = notes_.find({mark.line, mark.column});
  if (note != notes_.end() && !message.empty()) message += " (" + note->second + ")";
  return fault_at(mark, std::move(message));
}

Fault YamlDocument::fault_inside(const YAML::Node& scalar, size_t offset,
                                 std::string message) const {
  Fault fault = fault_at(scalar, std::move(message));
  if (fault.line == 0) return fault;
  const std::string line = line_text(fault.line);
  const size_t begin = line.find(scalar.Scalar(), static_cast<size_t>(fault.column) - 1);
  if (begin != std::string::npos) fault.column = static_cast<int64_t>(begin + offset) + 1;
  return fault;
}

void YamlDocument::set_note(const YAML::Node& node, std::string note) {
  const YAML::Mark mark = node.Mark();
  if (!mark.is_null()) notes_[{mark.line, mark.column}] = std::move(note);
}

std::string YamlDocument::line_text(int64_t line) const {
  if (line <= 0 || line > static_cast<int64_t>(line_starts_.size())) return "";
  const size_t begin = line_starts_[static_cast<size_t>(line) - 1];
  std::string text = text_.substr(begin, std::min(text_.find('\n', begin), text_.size()) - begin);
  if (!text.empty() && text.back() == '\r') text.pop_back();
  return text.substr(0, kMaxShownBytes);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // Below this; all letters of a word are no typo.
  size_t best_distance = std::min(std::max<size_t>(2, word.size() / 3) + 1, word.size());
  if (word.size() > kMaxComparedBytes) return best;  // no typo of anything
  for (const std::string& candidate : candidates) {
    if (candidate.size() >= word.size() + best_distance ||
        word.size() >= candidate.size() + best_distance)
      continue;  // as many edits as the lengths differ by
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t replace = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replace}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_word(word, candidates);
  return near.empty() ? "" : " (did you mean '" + near + "'?)";
}

}  // namespace lockstep
