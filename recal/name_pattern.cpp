#include "recal/name_pattern.h"

#include <algorithm>

#include <fmt/format.h>
#include <re2/re2.h>

namespace lockstep::recal {
namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr int64_t kRegexBytes = 256 << 10;  // about 2,700 instructions

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
  auto regex = std::make_shared<const RE2>(text_.substr(kRegexPrefix.size()), regex_options());
  if (!regex->ok())
    *error = fmt::format("'{}' is no regular expression (RE2): {}", text_, regex->error());
  regex_ = std::move(regex);
}

bool NamePattern::names(const std::string& name) const {
  if (!regex_) return name == dotted_;
  return matches_start(*regex_, name) || matches_start(*regex_, with(name, '.', '/'));
}

bool NamePattern::names_above(const std::string& name) const {
  return !regex_ && name.size() > dotted_.size() && name[dotted_.size()] == '.' &&
         name.starts_with(dotted_);
}

}  // namespace lockstep::recal
