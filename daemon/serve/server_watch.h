#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/files/lock_holder.h"
#include "daemon/serve/job_queue.h"

namespace lockstep::daemon {

/// Whom the lock of a folder names (base/files/folder_lock.h), alive or not.
std::optional<files::LockHolder> holder_of(const std::filesystem::path& folder);

/// Whether a process lives that has taken a folder. One on this host is
/// asked for; of one that cannot be, the heartbeat is watched from the first look on, and it counts
/// as alive until that has stood still for kHeartbeatPatience.
class HolderWatch {
 public:
  explicit HolderWatch(std::filesystem::path folder) : folder_(std::move(folder)) {}
  bool lives();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kHeartbeatPatience{30};

  const std::filesystem::path folder_;
  std::string heartbeat_;  ///< the last one seen, and when it was new
  Clock::time_point moved_at_ = Clock::now();
};

/// Whether a queue has a server, or a supervisor that starts one.
class ServerWatch {
 public:
  explicit ServerWatch(const JobQueue& queue)
      : server_(queue.root()), supervisor_(queue.root() / "supervisor") {}
  bool has_server() { return server_.lives() || supervisor_.lives(); }

 private:
  HolderWatch server_, supervisor_;
};

}  // namespace lockstep::daemon
