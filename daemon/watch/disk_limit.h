#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Time limit for a hanging disk after a stop request: then ends all ranks with exit code 75. For
/// work that a stop cannot interrupt and that leaves nothing half done.
class DiskLimit {
 public:
  /// `limit_s`: longest wait for the disk after a stop request. `stop` must outlive the object.
  /// `abort` ends all ranks with an exit code and does not return.
  DiskLimit(const train::StopRequest& stop, double limit_s, std::function<void(int)> abort);
  ~DiskLimit();
  DiskLimit(const DiskLimit&) = delete;
  DiskLimit& operator=(const DiskLimit&) = delete;

  /// Scope in which the constructing thread uses the disk.
  class Use {
   public:
    explicit Use(DiskLimit& limit) : limit_(limit) { limit_.is_used_ = true; }
    ~Use() { limit_.is_used_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    DiskLimit& limit_;
  };

 private:
  void watch();

  const train::StopRequest& stop_;
  const double limit_s_;
  const std::function<void(int)> abort_;
  std::atomic<bool> is_used_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::thread thread_;  // declared last: it uses the other members
};

}  // namespace lockstep::daemon
