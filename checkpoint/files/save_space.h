#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::checkpoint {

/// Throws Error(kIo) if a save of that many bytes does not fit into what the file system says is
/// free. One that gives no sizes (0 in all, as some in user space do) is taken to have room.
void require_space(const std::filesystem::path& folder, int64_t num_bytes,
                   const std::filesystem::space_info& space);

}  // namespace lockstep::checkpoint
