#include "checkpoint/files/save_space.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::checkpoint {

void require_space(const std::filesystem::path& folder, int64_t num_bytes,
                   const std::filesystem::space_info& space) {
  constexpr auto kUnknown = static_cast<std::uintmax_t>(-1);
  // Index and state file are not in num_bytes; 1 MiB is an allowance for them.
  constexpr int64_t kForIndexAndState = int64_t{1} << 20;
  if (space.capacity == 0 || space.capacity == kUnknown || space.available == kUnknown) return;
  const auto needed = static_cast<std::uintmax_t>(num_bytes + kForIndexAndState);
  if (space.available >= needed) return;
  throw Error(ExitCode::kIo, "checkpoint",
              fmt::format("{}: a save needs {} bytes and there are {}; make room, or lower "
                          "checkpoint.keep_checkpoint_max",
                          folder.string(), needed, space.available));
}

}  // namespace lockstep::checkpoint
