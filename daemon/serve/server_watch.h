#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/files/lock_holder.h"
#include "daemon/serve/job_queue.h"

namespace lockstep::daemon {

/// Returns the holder named by the lock of a folder (base/files/folder_lock.h), alive or not.
std::optional<files::LockHolder> holder_of(const std::filesystem::path& folder);

/// Detects whether the process that locked a folder is alive. A process on this host is queried
/// directly. For others the heartbeat is observed from the first call on. Such a process counts as
/// alive until the heartbeat has not changed for kHeartbeatPatience.
class HolderWatch {
 public:
  explicit HolderWatch(std::filesystem::path folder) : folder_(std::move(folder)) {}
  bool lives();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kHeartbeatPatience{30};

  const std::filesystem::path folder_;
  std::string heartbeat_;  ///< last observed value; moved_at_ is when it changed
  Clock::time_point moved_at_ = Clock::now();
};

/// Detects whether a queue has a server, or a supervisor that starts one.
class ServerWatch {
 public:
  explicit ServerWatch(const JobQueue& queue)
      : server_(queue.root()), supervisor_(queue.root() / "supervisor") {}
  bool has_server() { return server_.lives() || supervisor_.lives(); }

 private:
  HolderWatch server_, supervisor_;
};

}  // namespace lockstep::daemon
