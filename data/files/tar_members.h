#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// A regular file in a tar archive.
struct TarMember {
  std::string name;
  int64_t offset = 0;  ///< of its bytes in the archive
  int64_t num_bytes = 0;
};

/// Gives bytes [offset, offset + num_bytes) of the archive, which lie inside it.
using ReadArchive = std::function<std::string_view(int64_t offset, int64_t num_bytes)>;

/// The archive's regular files, in its order: ustar, long names of GNU and of pax. Reads headers
/// only. Throws Error(kBadData) that names `file` and offset: a checksum that is wrong, an archive
/// that is cut, an absolute name or one with `..`.
std::vector<TarMember> list_tar(const ReadArchive& read, int64_t file_bytes,
                                const std::string& file);

}  // namespace lockstep::data
