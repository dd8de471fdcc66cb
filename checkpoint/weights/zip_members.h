#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/files/files.h"

namespace lockstep::checkpoint {

/// File inside a zip archive.
struct ZipMember {
  int64_t header_offset = 0;  ///< of its local header
  int64_t num_bytes = 0;
  uint32_t crc32 = 0;     ///< of its bytes
  bool has_crc32 = true;  ///< false: all of the archive's are 0, as torch.save() may write them
  bool is_stored = true;  ///< neither compressed nor encrypted
};

/// Returns the members of a zip archive by name. It allocates memory only for the archive's
/// directory, at most 64 MiB. Throws Error(kBadData) if the archive is cut or damaged.
///
/// Source: PKWARE's APPNOTE.TXT, 4.3 (with the 64-bit records of 4.3.14 and 4.5.3).
std::map<std::string, ZipMember> zip_members(const files::Reader& file);

/// Returns a member's bytes, checked against their checksum if the archive has any. Throws
/// Error(kBadData) if they are damaged. Throws before it allocates memory if they exceed
/// `max_bytes`, or are compressed or encrypted, which torch.save() never does. So a small file
/// cannot unfold into a large one.
std::string read_member(const files::Reader& file, const std::string& name, const ZipMember& member,
                        int64_t max_bytes);

}  // namespace lockstep::checkpoint
