#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace re2 {
class RE2;
}

namespace lockstep::recal {

/// Entry of `params` or `submodules`: a name, dotted or slashed, or `re:REGEX`.
///
/// A pattern matches from the start of a name in either spelling; matching a prefix is enough. RE2
/// runs it, in time linear in the name's length. RE2 has no look-ahead, but two idioms for "all
/// names that do not contain X" are supported: re:^((?!X).)*$ and re:^(?!.*X).*$ (also without ^,
/// and with (?: ). Cheap to copy.
class NamePattern {
 public:
  static constexpr size_t kMaxBytes = 1000;

  /// Parses the text. Sets *error if it is not a valid pattern; else *error stays empty.
  NamePattern(std::string text, std::string* error);

  /// Text as written.
  const std::string& text() const { return text_; }
  bool is_regex() const { return regex_ != nullptr; }
  /// True for the idioms that select all names except those that contain a match.
  bool excludes() const { return excludes_; }
  /// True if the pattern matches the name, or equals it. `name` is dotted.
  bool names(const std::string& name) const;
  /// True if the text names a module that contains `name`: blocks for blocks.0.conv.
  bool names_above(const std::string& name) const;
  /// Name with dots; for a pattern its text.
  const std::string& dotted() const { return dotted_; }

 private:
  std::string text_;
  std::string dotted_;
  std::shared_ptr<const re2::RE2> regex_;  // null for a plain name
  bool excludes_ = false;                  // selects the names in which regex_ is not found
};

}  // namespace lockstep::recal
