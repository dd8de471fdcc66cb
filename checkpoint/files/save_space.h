#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::checkpoint {

/// Throws Error(kIo) if `num_bytes` do not fit into the free space that the file system reports. A
/// file system that reports a capacity of 0, as some user-space ones do, counts as having space.
void require_space(const std::filesystem::path& folder, int64_t num_bytes,
                   const std::filesystem::space_info& space);

}  // namespace lockstep::checkpoint
