#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/files/files.h"

namespace lockstep::train {

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
