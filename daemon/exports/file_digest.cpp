#include "daemon/exports/file_digest.h"

#include <algorithm>
#include <span>

#include "base/digest.h"
#include "base/files/files.h"

namespace lockstep::daemon {

FileDigest file_digest(const std::filesystem::path& path) {
  // Large enough for fast reads, small enough for any memory.
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  const files::Reader file(path);
  Sha256 sum;
  std::string piece;
  for (int64_t offset = 0; offset < file.num_bytes(); offset += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, file.num_bytes() - offset)));
    file.read_at(offset, std::span(piece));
    sum.add(std::string_view(piece));
  }
  return {file.num_bytes(), sum.hex()};
}

}  // namespace lockstep::daemon
