#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/files/files.h"

namespace lockstep::checkpoint {

/// A file inside a zip archive.
struct ZipMember {
  int64_t header_offset = 0;  ///< of its local header
  int64_t num_bytes = 0;
  uint32_t crc32 = 0;     ///< of its bytes
  bool has_crc32 = true;  ///< false: all of the archive's are 0, as torch.save() may leave them
  bool is_stored = true;  ///< as it is; else compressed or encrypted
};

/// Members of a zip archive by name. Takes memory for the directory of the archive alone, 64 MiB at
/// most. Throws Error(kBadData) if it is cut or damaged.
///
/// Source: PKWARE's APPNOTE.TXT, 4.3 (with the 64-bit records of 4.3.14 and 4.5.3).
std::map<std::string, ZipMember> zip_members(const files::Reader& file);

/// A member's bytes, compared with their checksum if the archive has any. Throws Error(kBadData) if
/// they are damaged; before memory is taken, if they are longer than `max_bytes`, or not stored as
/// they are, which torch.save() never does: a small file cannot unfold into a large one.
std::string read_member(const files::Reader& file, const std::string& name, const ZipMember& member,
                        int64_t max_bytes);

}  // namespace lockstep::checkpoint
