#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "base/files/files.h"

namespace lockstep::coord {

/// File that appears under its name when it is complete. It is written as <name>.part next to it
/// and then renamed. An unpublished file is removed. If the process is killed, the .part remains.
/// Throws Error(kIo), kCannotCreate.
class WholeFile {
 public:
  explicit WholeFile(std::filesystem::path path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view bytes) { writer_->append(bytes); }
  /// Publishes the file. Call it once, at the end. `durably` also survives a power failure, which
  /// takes a disk sync.
  void publish(bool durably);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_, part_;
  std::optional<files::Writer> writer_;  // reset when the file is published
};

}  // namespace lockstep::coord
