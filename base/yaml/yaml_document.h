#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/mark.h>
#include <yaml-cpp/node/node.h>

#include "base/diagnostics.h"

/// YAML files and texts, with the source locations that messages need.
namespace lockstep {

/// Part of a text: bytes [begin, end).
struct TextPart {
  size_t begin = 0;
  size_t end = 0;
};

/// Text with priority over the document at one place: from `--set` or the environment.
struct YamlAddition {
  std::string origin;             ///< its name in faults: "--set run.seed"
  std::vector<std::string> path;  ///< its place, at least one plain word: run, seed
  std::string text;               ///< as it would follow "seed: " in the document
};

/// Key of a map with its value. Not assignable, because assigning a YAML::Node writes into its
/// tree.
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

/// Parsed YAML file or text with all that messages need. It reports as faults what yaml-cpp accepts
/// or explains badly. These are empty text, a second document, duplicate keys, merge keys, tabs,
/// more than 1 MiB, and invalid UTF-8. During parsing (base/yaml/yaml_check.h) it also reports more
/// than 64 levels or 100,000 nodes. Each use of an alias counts.
///
/// An alias is the same node as its anchor, so its position is that of the original text.
class YamlDocument {
 public:
  /// Parses a text. Diagnostics go to `faults`; root() is then null, and reading it adds no further
  /// fault.
  static YamlDocument parse(std::string file, std::string text, Diagnostics* faults);
  /// Parses a text of which only a part is YAML (the front matter of a Markdown file). Positions
  /// are those in the entire text.
  static YamlDocument parse_part(std::string file, std::string text, TextPart part,
                                 Diagnostics* faults);
  /// Reads and parses a file. Throws Error(kInputMissing or kIo) for a missing or unreadable one.
  static YamlDocument load(const std::string& path, Diagnostics* faults);
  /// Returns the bytes of a file, for parsing. Errors as load().
  static std::string read_text(const std::string& path);

  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  YAML::Node& root() { return root_; }
  const YAML::Node& root() const { return root_; }

  /// Parses an addition with the checks of the document, as if it were at its place there. It has
  /// the same nesting depth, and its aliases find the document's anchors (unless the entire
  /// document is one {...}). Its lines after the first are indented below the first.
  ///
  /// Returns the first key of the path with its value; nullopt after a fault. The caller puts it
  /// into the tree. Diagnostics at its nodes have its origin, with lines and columns of its text.
  std::optional<YamlPair> parse_addition(const YamlAddition& addition, Diagnostics* faults);

  /// True if the text has `null` or `~` there, rather than nothing.
  bool says_null(const YAML::Node& node) const;
  /// Returns "line 7", or the origin of an addition.
  std::string place_text(const YAML::Mark& mark) const;
  /// Sets how a node's value was computed, if it is not as written (eval(2 * 3) = 6). Each fault at
  /// the node then has this note in brackets.
  void set_note(const YAML::Node& node, std::string note);
  /// Returns a fault at a node's position, or at the file if the node has none.
  Fault fault_at(const YAML::Node& node, std::string message) const;
  Fault fault_at(const YAML::Mark& mark, std::string message) const;
  /// Returns a fault at byte `offset` of a scalar's text, if that is written unchanged on one line.
  Fault fault_inside(const YAML::Node& scalar, size_t offset, std::string message) const;

 private:
  /// Place of a parsed addition. Line numbers continue from the document's over all additions, so
  /// that a mark belongs to one place only. From 0.
  struct AdditionPlace {
    std::string origin, text;
    int first_line = 0;                    ///< of its path
    int value_line = 0, value_column = 0;  ///< of its text
    int indent = 0;                        ///< of the text's further lines
    bool holds(const YAML::Mark& mark) const;
  };

  /// Returns the text before an addition during parsing: the document, if more can follow it.
  std::string text_before(int line) const;
  const AdditionPlace* addition_at(const YAML::Mark& mark) const;
  Fault fault_in(const AdditionPlace& place, const YAML::Mark& mark, std::string message) const;
  /// Returns the entire line at a mark; empty if there is none.
  std::string_view line_at(const YAML::Mark& mark) const;

  std::string file_;
  std::string text_;
  TextPart part_;
  std::vector<uint32_t> line_starts_;  // bytes of text_
  int root_column_ = -1;               // of the top-level keys; -1: nothing can follow them
  std::vector<AdditionPlace> additions_;
  int num_lines_ = 0;                                 // of the document and all additions
  std::map<std::pair<int, int>, std::string> notes_;  // by line and column, from 0
  YAML::Node root_;
};

/// Source location of a node that outlives the YAML tree. It is for faults that are found only when
/// the model is known.
struct SourceLocation {
  std::string file;
  int64_t line = 0;  ///< from 1; 0: unknown
  int64_t column = 0;
  std::string source_line;

  Fault fault(std::string message) const {
    return {file, line, column, std::move(message), source_line};
  }
  /// Returns file:line.
  std::string text() const;
};
SourceLocation location_of(const YamlDocument& document, const YAML::Node& node);

/// Returns the path of a file, or of a pattern's files (`*`, `?`, `[`), that a YAML file names. It
/// is the path as written, relative to the working folder. If only the path next to the YAML file
/// exists, it is that one. It is as written if neither exists, for an empty name, and for a path in
/// a store (s3://...).
std::filesystem::path path_beside(const YamlDocument& document, const std::filesystem::path& named);

}  // namespace lockstep
