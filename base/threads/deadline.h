#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

/// Watchdog timer: runs `action` once, on a separate thread, unless it is destroyed before `limit`
/// has passed. For waits without their own timeout (a network, a disk, MPI's start). What `action`
/// needs must outlive this; it must not throw. The destructor waits for a running action.
///
///     const Deadline end(std::chrono::seconds(5), [] { std::_Exit(79); });
///     write_to_a_disk_that_may_hang();
class Deadline {
 public:
  Deadline(std::chrono::duration<double> limit, std::function<void()> action);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::thread thread_;  // last: uses the members above
};

}  // namespace lockstep
