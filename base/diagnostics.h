#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Faults of run files and recipes, and hints for misspelled words.
namespace lockstep {

/// Returns the candidate nearest to `word` by edit distance; empty if none is near enough to be a
/// likely typo.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
/// Returns " (did you mean 'x'?)" or an empty text.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// Returns at most `count` candidates by edit distance to `word`, nearest first, however far they
/// are. Of equal distances the earlier candidate comes first.
std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& candidates,
                                       size_t count = 5);

/// One fault of a run file, a recipe or an override. Lines and columns count from 1; 0 means
/// unknown.
struct Fault {
  std::string file;  ///< or another origin of the text: "--set run.seed"
  int64_t line = 0;
  int64_t column = 0;
  std::string message;
  std::string source_line;  ///< text of that line; empty if unknown
  /// Position of the node in its document, from 0, unique over the file and all overrides; -1:
  /// none.
  int mark_line = -1, mark_column = -1;
};

/// All faults of one reading, so that a user can correct them in one pass. Only the first kMaxKept
/// are kept, with messages of at most kMaxMessageBytes. A file with more is hardly meant for this
/// program.
class Diagnostics {
 public:
  static constexpr size_t kMaxKept = 100;
  static constexpr size_t kMaxMessageBytes = 2000;

  void add(Fault fault);
  const std::vector<Fault>& list() const { return list_; }
  bool empty() const { return list_.empty(); }
  /// True if further faults would not be shown.
  bool full() const { return list_.size() == kMaxKept; }

  /// Returns for each fault `file:line:col: error: message`, the source line and a caret; then the
  /// count.
  std::string text() const;
  /// Throws Error(kConfig) with text() if there is any fault.
  void throw_if_any(std::string_view area) const;

 private:
  std::vector<Fault> list_;
};

}  // namespace lockstep
