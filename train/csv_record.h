#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/files.h"

namespace lockstep::train {

/// A line of a file, without its line break, and the offset behind that.
struct FoundLine {
  std::string text;
  int64_t end = 0;
};

/// The last wanted one of a file's whole lines from the offset `begin` on. Reads from the end, no
/// more than it must: the file may be larger than memory. Throws as files::Reader does.
std::optional<FoundLine> last_line(const std::filesystem::path& path, int64_t begin,
                                   const std::function<bool(std::string_view)>& is_wanted);

/// A file of lines that begin with the step they belong to, steps rising. A resumed run cuts it at
/// the restored step, so that the file reads as that of an unbroken run.
///
/// A record that cannot be written does not end a run: lines wait in memory (at most 4 MiB, later
/// ones are lost), one warning tells why, and the file goes on where it stopped once there is room.
class CsvRecord {
 public:
  /// Keeps lines of steps <= restored_step below the header, drops the rest. Throws
  /// Error(kCannotCreate or kIo).
  CsvRecord(const std::filesystem::path& path, std::string_view header, int64_t restored_step);
  ~CsvRecord();  // flushes
  CsvRecord(const CsvRecord&) = delete;
  CsvRecord& operator=(const CsvRecord&) = delete;

  /// Whole lines, each with its line break.
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
