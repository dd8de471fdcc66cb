#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::daemon {

/// Size and digest of a file for a manifest.
struct FileDigest {
  int64_t num_bytes = 0;
  std::string sha256;  ///< 64 hex digits
};

/// Computes the digest piece by piece, so memory does not grow with the file. Throws as
/// files::Reader.
FileDigest file_digest(const std::filesystem::path& path);

}  // namespace lockstep::daemon
