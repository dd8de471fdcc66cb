#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::daemon {

/// What a manifest says of a file.
struct FileDigest {
  int64_t num_bytes = 0;
  std::string sha256;  ///< 64 hex digits
};

/// Reads the file in pieces: memory does not grow with it. Throws as files::Reader.
FileDigest file_digest(const std::filesystem::path& path);

}  // namespace lockstep::daemon
