#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/mark.h>
#include <yaml-cpp/node/node.h>

#include "base/diagnostics.h"
#include "base/nearest_word.h"

namespace lockstep {

/// A part of a text: bytes begin to end, end exclusive.
struct TextPart {
  size_t begin = 0;
  size_t end = 0;
};

/// A text that stands above a document's own at one place: from `--set` or the environment.
struct YamlAddition {
  std::string origin;             ///< names it in faults: "--set run.seed"
  std::vector<std::string> path;  ///< where it stands, at least one plain word: run, seed
  std::string text;               ///< as it would be written behind "seed: " in the document
};

/// A key of a map with its value. No assignment: that of a YAML::Node writes into its tree.
struct YamlPair {
  YAML::Node key, value;

  YamlPair& operator=(const YamlPair&) = delete;
  YamlPair(const YamlPair&) = default;
  YamlPair(const YAML::Node& a_key, const YAML::Node& a_value) : key(a_key), value(a_value) {}
  void reset(const YAML::Node& a_key, const YAML::Node& a_value) {
    key.reset(a_key);
    value.reset(a_value);
  }
};

/// A YAML file or text, parsed, with what messages need. Refuses (as faults) what yaml-cpp lets
/// pass or explains badly: empty text, a second document, duplicate keys, merge keys, tabs, more
/// than 1 MiB, invalid UTF-8, and, counted while parsing (base/yaml/yaml_check.h), more than
/// 100,000 nodes with each use of an alias counted anew, or more than 64 levels.
///
/// An alias is the very node that it names: its place is the place of what was written.
class YamlDocument {
 public:
  /// Diagnostics go to `faults`; root() is then null and reading it adds no further fault.
  static YamlDocument parse(std::string file, std::string text, Diagnostics* faults);
  /// The same of a text of which only a part is YAML (the front matter of a Markdown file); places
  /// are those of the whole text.
  static YamlDocument parse_part(std::string file, std::string text, TextPart part,
                                 Diagnostics* faults);
  /// Reads and parses. A missing or unreadable file throws Error(kInputMissing or kIo).
  static YamlDocument load(const std::string& path, Diagnostics* faults);
  /// The bytes of a file, to be parsed. Errors as load().
  static std::string read_text(const std::string& path);

  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  YAML::Node& root() { return root_; }
  const YAML::Node& root() const { return root_; }

  /// Reads an addition with the checks of the document, as if it stood at its place there: it nests
  /// as deep, and its aliases know the anchors of the document (not if the whole document is one
  /// {...}). Its further lines are indented to stand below its first. Gives the first key of the
  /// path with what belongs to it, for the caller to put into the tree; nothing after a fault.
  /// Diagnostics at its nodes name its origin, with lines and columns of its text.
  std::optional<YamlPair> parse_addition(const YamlAddition& addition, Diagnostics* faults);

  /// Whether `null` or `~` is written there, and not just nothing.
  bool says_null(const YAML::Node& node) const;
  /// "line 7", or the origin of an addition.
  std::string place_text(const YAML::Mark& mark) const;
  /// How the value of a node came about, if it is not as written (eval(2 * 3) = 6): added in
  /// brackets to each fault at it.
  void set_note(const YAML::Node& node, std::string note);
  /// A fault at a node's place (or at the file if the node has none).
  Fault fault_at(const YAML::Node& node, std::string message) const;
  Fault fault_at(const YAML::Mark& mark, std::string message) const;
  /// A fault at the byte `offset` of a scalar's text, where that text stands in one line as it is.
  Fault fault_inside(const YAML::Node& scalar, size_t offset, std::string message) const;

 private:
  /// Where an addition was parsed: lines of all of them are counted on from the document's, so that
  /// a mark stands for one place only. From 0.
  struct AdditionPlace {
    std::string origin, text;
    int first_line = 0;                    ///< of its path
    int value_line = 0, value_column = 0;  ///< of its text
    int indent = 0;                        ///< of the text's further lines
    bool holds(const YAML::Mark& mark) const;
  };

  /// What stands before an addition while it is parsed: the document if more can follow it.
  std::string text_before(int line) const;
  const AdditionPlace* addition_at(const YAML::Mark& mark) const;
  Fault fault_in(const AdditionPlace& place, const YAML::Mark& mark, std::string message) const;
  /// The line at a mark, whole; empty where there is none.
  std::string_view line_at(const YAML::Mark& mark) const;

  std::string file_;
  std::string text_;
  TextPart part_;
  std::vector<uint32_t> line_starts_;  // bytes of text_
  int root_column_ = -1;               // of the top level's keys; -1: nothing can follow them
  std::vector<AdditionPlace> additions_;
  int num_lines_ = 0;                                 // of the document and all additions
  std::map<std::pair<int, int>, std::string> notes_;  // by line and column, from 0
  YAML::Node root_;
};

}  // namespace lockstep
