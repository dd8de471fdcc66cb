#include "recal/params/name_pattern.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <re2/re2.h>

namespace lockstep::recal {
// Patterns come from users' files. RE2 guarantees linear time, and the limits below bound memory.
namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr std::string_view kNoLookAround =
    "; there is no look-ahead and no look-behind: for all names without X write re:^((?!X).)*$, "
    "else list the names";
constexpr int64_t kRegexBytes = 256 << 10;  // limit of RE2's program, about 2,700 instructions

std::string with(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

RE2::Options regex_options() {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kRegexBytes);
  return options;
}

/// Returns X if the pattern is an idiom for "all names without X".
std::optional<std::string> excluded_by(const std::string& regex) {
  static const RE2 each_character(R"(\^?\((?:\?:)?\(\?!(.+)\)\.\)\*\$)");
  static const RE2 at_the_start(R"(\^?\(\?!\.\*(.+)\)(?:\.\*)?\$?)");
  std::string excluded;
  if (!RE2::FullMatch(regex, each_character, &excluded) &&
      !RE2::FullMatch(regex, at_the_start, &excluded))
    return std::nullopt;
  return excluded;
}

bool has_look_around(const std::string& regex) {
  return regex.find("(?!") != std::string::npos || regex.find("(?=") != std::string::npos ||
         regex.find("(?<") != std::string::npos;
}

bool matches_start(const RE2& regex, const std::string& text) {
  return regex.Match(text, 0, text.size(), RE2::ANCHOR_START, nullptr, 0);
}

}  // namespace

NamePattern::NamePattern(std::string text, std::string* error)
    : text_(std::move(text)), dotted_(text_) {
  if (!text_.starts_with(kRegexPrefix)) {
    dotted_ = with(text_, '/', '.');
    return;
  }
  if (text_.size() > kMaxBytes) {
    *error = fmt::format("a pattern may have at most {} bytes, this one has {}", kMaxBytes,
                         text_.size());
    return;
  }
  const std::string written = text_.substr(kRegexPrefix.size());
  const std::optional<std::string> excluded = excluded_by(written);
  auto regex = std::make_shared<const RE2>(excluded.value_or(written), regex_options());
  // A pattern that matches the empty text is found in every name.
  if (excluded && regex->ok() && RE2::FullMatch("", *regex))
    *error = fmt::format("'{}' excludes what is found in every name: it selects nothing", text_);
  if (!regex->ok())
    *error = fmt::format("'{}' is no regular expression (RE2): {}{}", text_, regex->error(),
                         has_look_around(excluded.value_or(written)) ? kNoLookAround : "");
  regex_ = std::move(regex);
  excludes_ = excluded.has_value();
}

bool NamePattern::names(const std::string& name) const {
  if (!regex_) return name == dotted_;
  // Users write names in both spellings, and a pattern cannot be translated.
  const std::string slashed = with(name, '.', '/');
  if (excludes_) return !RE2::PartialMatch(name, *regex_) && !RE2::PartialMatch(slashed, *regex_);
  return matches_start(*regex_, name) || matches_start(*regex_, slashed);
}

bool NamePattern::names_above(const std::string& name) const {
  return !regex_ && name.size() > dotted_.size() && name[dotted_.size()] == '.' &&
         name.starts_with(dotted_);
}

}  // namespace lockstep::recal
