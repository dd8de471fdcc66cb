#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace re2 {
class RE2;
}

namespace lockstep::recal {

/// An entry of `params` or `submodules`: a name, dotted or slashed, or `re:REGEX`.
///
/// A pattern matches from the start of a name in either spelling; a prefix is enough. It runs under
/// RE2, in time linear in the name's length. RE2 has no look-ahead; two idioms for "every name in
/// which X is not found" are read as what they mean: re:^((?!X).)*$ and re:^(?!.*X).*$ (without ^,
/// and with (?: ), too). Cheap to copy.
class NamePattern {
 public:
  static constexpr size_t kMaxBytes = 1000;

  /// `error` says why the text is no pattern; it stays empty if it is one.
  NamePattern(std::string text, std::string* error);

  /// As written.
  const std::string& text() const { return text_; }
  bool is_regex() const { return regex_ != nullptr; }
  /// True if it means all names but those in which something is found.
  bool excludes() const { return excludes_; }
  /// True if the pattern matches the name, or is this very name. `name` is dotted.
  bool names(const std::string& name) const;
  /// True if it is the name of what `name` stands below: blocks for blocks.0.conv.
  bool names_above(const std::string& name) const;
  /// The name with dots; the text of a pattern.
  const std::string& dotted() const { return dotted_; }

 private:
  std::string text_;
  std::string dotted_;
  std::shared_ptr<const re2::RE2> regex_;  // null: a name
  bool excludes_ = false;                  // names in which regex_ is found
};

}  // namespace lockstep::recal
