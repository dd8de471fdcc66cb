#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/mark.h>
#include <yaml-cpp/node/node.h>

namespace lockstep {

/// One fault of a run file or recipe. Lines and columns count from 1; 0 where the place is unknown.
struct Fault {
  std::string file;
  int64_t line = 0;
  int64_t column = 0;
  std::string message;
  std::string source_line;  ///< text of that line, empty if unknown
};

/// All faults of one reading, so that a user mends them in one pass. Only the first kMaxKept are
/// kept, with messages of at most kMaxMessageBytes: a file that needs more is hardly meant for this
/// program.
class Faults {
 public:
  static constexpr size_t kMaxKept = 100;
  static constexpr size_t kMaxMessageBytes = 2000;

  void add(Fault fault);
  const std::vector<Fault>& list() const { return list_; }
  bool empty() const { return list_.empty(); }
  /// Further reading would find nothing that is shown.
  bool full() const { return list_.size() == kMaxKept; }

  /// `file:line:col: error: message`, the source line and a caret for each, then the count.
  std::string text() const;
  /// Throws Error(kConfig) with text() if there is any fault.
  void throw_if_any(std::string_view area) const;

 private:
  std::vector<Fault> list_;
};

/// A part of a text: bytes begin to end, end exclusive.
struct TextPart {
  size_t begin = 0;
  size_t end = 0;
};

/// A YAML file or text, parsed, with what messages need. Refuses (as faults) what yaml-cpp lets
/// pass or explains badly: empty text, a second document, duplicate keys, merge keys, tabs, more
/// than 1 MiB, invalid UTF-8, and, counted while parsing (base/yaml_check.h), more than 100,000
/// nodes with each use of an alias counted anew, or more than 64 levels.
///
/// An alias is the very node that it names: its place is the place of what was written.
class YamlDocument {
 public:
  /// Faults go to `faults`; root() is then null and reading it adds no further fault.
  static YamlDocument parse(std::string file, std::string text, Faults* faults);
  /// The same of a text of which only a part is YAML (the front matter of a Markdown file); places
  /// are those of the whole text.
  static YamlDocument parse_part(std::string file, std::string text, TextPart part, Faults* faults);
  /// Reads and parses. A missing or unreadable file throws Error(kInputMissing or kIo).
  static YamlDocument load(const std::string& path, Faults* faults);
  /// The bytes of a file, to be parsed. Errors as load().
  static std::string read_text(const std::string& path);

  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  YAML::Node& root() { return root_; }
  const YAML::Node& root() const { return root_; }

  /// Where values come from that were put into the tree afterwards: faults at them name it instead
  /// of the file.
  void set_origin_of_additions(std::string origin) { origin_of_additions_ = std::move(origin); }
  /// How the value of a node came about, if it is not as written (eval(2 * 3) = 6): added in
  /// brackets to each fault at it.
  void set_note(const YAML::Node& node, std::string note);
  /// A fault at a node's place (or without a place if the node has none).
  Fault fault_at(const YAML::Node& node, std::string message) const;
  Fault fault_at(const YAML::Mark& mark, std::string message) const;
  /// A fault at the byte `offset` of a scalar's text, where that text stands in one line as it is.
  Fault fault_inside(const YAML::Node& scalar, size_t offset, std::string message) const;

 private:
  /// False, with a fault, if the text is too long or no UTF-8.
  bool text_is_sound(Faults* faults) const;
  /// Text of a line, which counts from 1; at most 160 bytes.
  std::string line_text(int64_t line) const;

  std::string file_;
  std::string text_;
  std::vector<uint32_t> line_starts_;  // bytes of text_
  std::string origin_of_additions_;
  std::map<std::pair<int, int>, std::string> notes_;  // by line and column, from 0
  YAML::Node root_;
};

/// The candidate nearest to `word` by edit distance, or empty if none is near enough to be a likely
/// typo.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
/// " (did you mean 'x'?)" or empty.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace lockstep
