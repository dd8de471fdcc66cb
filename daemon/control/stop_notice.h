#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "daemon/control/requests.h"
#include "dist/notice.h"

namespace lockstep::daemon {

/// Passes on a stop request that one rank has received while another rank waits for its data
/// (train/step/data_wait.h). The other ranks wait for that rank, so no step ends and no vote of the
/// ranks takes place.
///
/// A thread checks a few times a second whether this rank has a request. It notifies the other
/// ranks only if training has not ended after a while. So nothing is sent in a run whose steps end.
class StopNotice {
 public:
  /// `requests` receives the notices of other ranks from now on. The thread calls `is_training`.
  /// All arguments must outlive the object.
  StopNotice(std::unique_ptr<dist::Notice> notice, Requests& requests,
             std::function<bool()> is_training);
  ~StopNotice();
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void look();

  const std::unique_ptr<dist::Notice> notice_;
  Requests& requests_;
  const std::function<bool()> is_training_;
  std::optional<Clock::time_point> asked_at_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;   // guarded by mutex_
  std::thread thread_;  // declared last: it uses the other members
};

}  // namespace lockstep::daemon
