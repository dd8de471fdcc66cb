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

/// Brings a request to stop that one rank has got to a rank that waits for its data
/// (train/step/data_wait.h), for which the others wait in turn: no step ends, so no vote tells it.
///
/// A thread looks a few times a second whether this rank was asked, and tells the others where
/// training still goes on after a while: in a run whose steps end it says nothing.
class StopNotice {
 public:
  /// `requests` hears from now on what other ranks tell. `is_training` is asked by the thread. All
  /// must outlive it.
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
  std::thread thread_;  // last: it uses the others
};

}  // namespace lockstep::daemon
