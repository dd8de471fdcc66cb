#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/files.h"

namespace lockstep::train {

/// A line of a file, without its line break, and the offset after the line break.
struct FoundLine {
  std::string text;
  int64_t end = 0;
};

/// Returns the last wanted complete line of a file, from the offset `begin` on. Reads backwards
/// from the end, no more than necessary, since the file may be larger than memory. Throws like
/// files::Reader.
std::optional<FoundLine> last_line(const std::filesystem::path& path, int64_t begin,
                                   const std::function<bool(std::string_view)>& is_wanted);

/// A file of lines that begin with their step, in rising order. A resumed run truncates it at the
/// restored step, so that the file reads like that of an uninterrupted run.
///
/// A failed write does not end a run. Lines are kept in memory (at most 4 MiB, later ones are
/// lost), and one warning gives the reason. Writing continues once there is space.
class CsvRecord {
 public:
  /// Keeps the header and lines of steps <= restored_step, drops the rest. Throws
  /// Error(kCannotCreate or kIo).
  CsvRecord(const std::filesystem::path& path, std::string_view header, int64_t restored_step);
  ~CsvRecord();  // flushes
  CsvRecord(const CsvRecord&) = delete;
  CsvRecord& operator=(const CsvRecord&) = delete;

  /// Appends complete lines, each with its line break.
  void append(std::string_view lines);
  void flush();

 private:
  void warn_once(const std::string& reason);

  const std::string name_;
  files::Writer out_;
  std::string pending_;  // not yet in the file
  size_t flush_at_bytes_;
  bool warned_ = false;
};

}  // namespace lockstep::train
