#include "recal/recipe/front_matter.h"

#include <algorithm>
#include <string_view>

namespace lockstep::recal {
// This file examines the structure only: fences, comments, first lines. The YAML itself is parsed
// later.
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlank = " \t\r\n";
constexpr std::string_view kCommentBegin = "<!--";
constexpr std::string_view kCommentEnd = "-->";

/// Returns the first offset from `at` on that is not blank, or the end.
size_t after_blank(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kBlank, at), text.size());
}

/// Returns the offset after the end of the line that contains `at`.
size_t next_line(std::string_view text, size_t at) {
  const size_t end = text.find('\n', at);
  return end == std::string_view::npos ? text.size() : end + 1;
}

/// True if the line is `---`, followed by blanks only.
bool is_fence(std::string_view text, size_t line_begin) {
  if (line_begin > kByteOrderMark.size() && text[line_begin - 1] != '\n') return false;
  const std::string_view line = text.substr(line_begin, next_line(text, line_begin) - line_begin);
  return line.substr(0, 3) == "---" && line.find_first_not_of(kBlank, 3) == std::string_view::npos;
}

size_t find_fence(std::string_view text, size_t at) {
  while (at < text.size() && !is_fence(text, at)) at = next_line(text, at);
  return at;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}
bool is_named_markdown(std::string_view file) {
  return ends_with(file, ".md") || ends_with(file, ".markdown");
}

/// True if the first line that is not a comment is `key:` or a list item with a tag.
bool looks_like_yaml(std::string_view text) {
  size_t at = after_blank(text, 0);
  while (at < text.size() && text[at] == '#') at = after_blank(text, next_line(text, at));
  const std::string_view line = text.substr(at, next_line(text, at) - at);
  if (line.substr(0, 3) == "- !") return true;
  const size_t colon = line.find(':');
  return colon != std::string_view::npos && colon > 0 && line.find_first_of(" \t") >= colon &&
         (colon + 1 == line.size() || kBlank.find(line[colon + 1]) != std::string_view::npos);
}

Fault fault_in(const std::string& file, std::string_view text, size_t at, std::string message) {
  const auto begin = text.begin();
  const auto line = 1 + std::count(begin, begin + static_cast<std::ptrdiff_t>(at), '\n');
  const std::string_view source = text.substr(at, text.find_first_of("\r\n", at) - at);
  // The source line in a fault is cut: a file may be one very long line.
  return {file, line, 1, std::move(message), std::string(source.substr(0, 160))};
}

}  // namespace

std::optional<TextPart> find_yaml(const std::string& file, const std::string& text,
                                  Diagnostics* faults) {
  const std::string_view view = text;
  const auto refuse = [&](size_t at, std::string message) {
    faults->add(fault_in(file, view, at, std::move(message)));
    return std::nullopt;
  };
  size_t at = after_blank(view, view.substr(0, 3) == kByteOrderMark ? 3 : 0);
  // HTML comments (such as licences) before the fence show that the file is Markdown.
  bool is_markdown = false;
  while (view.substr(at, kCommentBegin.size()) == kCommentBegin) {
    const size_t end = view.find(kCommentEnd, at);
    if (end == std::string_view::npos) return refuse(at, "this comment has no end ('-->')");
    is_markdown = true;
    at = after_blank(view, end + kCommentEnd.size());
  }
  const TextPart whole{0, view.size()};
  if (!is_fence(view, at)) {
    if (!is_markdown) return whole;
    return refuse(at, "behind the comment a recipe must begin with a line '---'");
  }
  const TextPart part{next_line(view, at), find_fence(view, next_line(view, at))};
  // A recipe that is plain YAML may also begin with `---`, the start of a YAML document.
  is_markdown = is_markdown || is_named_markdown(file);
  if (part.end < view.size())
    return is_markdown || !looks_like_yaml(view.substr(next_line(view, part.end))) ? part : whole;
  if (!is_markdown) return whole;
  return refuse(at, "the front matter that begins here has no end (a second line '---')");
}

}  // namespace lockstep::recal
