#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Regular file in a tar archive.
struct TarMember {
  std::string name;
  int64_t offset = 0;  ///< position of its bytes in the archive
  int64_t num_bytes = 0;
};

/// Function that returns bytes [offset, offset + num_bytes) of the archive, which are inside it.
using ReadArchive = std::function<std::string_view(int64_t offset, int64_t num_bytes)>;

/// Lists the archive's regular files in order. Supported are ustar and long names of GNU and pax.
/// Only headers are read. Throws Error(kBadData) with `file` and offset. Reasons are a wrong
/// checksum, a cut archive, an absolute name and a name with `..`.
std::vector<TarMember> list_tar(const ReadArchive& read, int64_t file_bytes,
                                const std::string& file);

}  // namespace lockstep::data
