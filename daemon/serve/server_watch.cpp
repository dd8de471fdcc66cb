#include "daemon/serve/server_watch.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"

// A lock file may belong to a process on another host, which cannot be checked. Then only its
// heartbeat shows that it is alive.
namespace lockstep::daemon {
namespace {

constexpr int64_t kMaxLockFileBytes = 1 << 16;

}  // namespace

std::optional<files::LockHolder> holder_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / ".lock";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return std::nullopt;
  try {
    return files::LockHolder::parse(files::read(file, kMaxLockFileBytes));
  } catch (const Error&) {
    return std::nullopt;  // removed meanwhile
  }
}

bool HolderWatch::lives() {
  const std::optional<files::LockHolder> holder = holder_of(folder_);
  if (!holder) return false;
  // A process on this host can be checked at once, even if its heartbeat is late.
  if (holder->can_be_asked()) return holder->is_alive();
  std::string heartbeat = fmt::format("{} {}", holder->token, holder->num_beats);
  if (heartbeat != heartbeat_) {
    heartbeat_ = std::move(heartbeat);
    moved_at_ = Clock::now();
  }
  return Clock::now() - moved_at_ < kHeartbeatPatience;
}

}  // namespace lockstep::daemon
