#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

/// All faults of one reading, so that a user mends them in one pass.
class Faults {
 public:
  void add(Fault fault) { list_.push_back(std::move(fault)); }
  const std::vector<Fault>& list() const { return list_; }
  bool empty() const { return list_.empty(); }

  /// `file:line:col: error: message`, the source line and a caret for each, then the count.
  std::string text() const;
  /// Throws Error(kConfig) with text() if there is any fault.
  void throw_if_any(std::string_view area) const;

 private:
  std::vector<Fault> list_;
};

/// A YAML file or text, parsed, with what messages need. Refuses (as faults) what yaml-cpp lets
/// pass or explains badly: empty text, a second document, duplicate keys, merge keys, tabs, more
/// than 1 MiB, more than 100,000 nodes, invalid UTF-8.
class YamlDocument {
 public:
  /// Faults go to `faults`; root() is then null and reading it adds no further fault.
  static YamlDocument parse(std::string file, std::string text, Faults* faults);
  /// Reads and parses. A missing or unreadable file throws Error(kInputMissing or kIo).
  static YamlDocument load(const std::string& path, Faults* faults);

  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  YAML::Node& root() { return root_; }
  const YAML::Node& root() const { return root_; }

  /// Where values come from that were put into the tree afterwards: faults at them name it instead
  /// of the file.
  void set_origin_of_additions(std::string origin) { origin_of_additions_ = std::move(origin); }
  /// A fault at a node's place (or without a place if the node has none).
  Fault fault_at(const YAML::Node& node, std::string message) const;

 private:
  std::string line_text(int64_t line) const;  // line counts from 1

  std::string file_;
  std::string text_;
  std::string origin_of_additions_;
  YAML::Node root_;
};

/// The candidate nearest to `word` by edit distance, or empty if none is near enough to be a likely
/// typo.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
/// " (did you mean 'x'?)" or empty.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace lockstep
