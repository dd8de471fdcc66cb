#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "base/files/files.h"

namespace lockstep::coord {

/// A file that appears under its name once it is whole: it is written beside it, as <name>.part,
/// and renamed. One that is not published is removed, or, where the process is killed, stays a
/// .part. Throws Error(kIo), kCannotCreate.
class WholeFile {
 public:
  explicit WholeFile(std::filesystem::path path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view bytes) { writer_->append(bytes); }
  /// Call once, last. `durably`: also after a loss of power, which takes a disk's time.
  void publish(bool durably);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_, part_;
  std::optional<files::Writer> writer_;  // until it is published
};

}  // namespace lockstep::coord
