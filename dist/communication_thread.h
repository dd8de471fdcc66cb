#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::dist {

/// A thread that does jobs 0, 1, 2, ... of a round, each once it was released, in order.
///
///   begin();  release(2);  release(5);  ...  num_done = end();   // and the caller does the rest
///
/// It sleeps while nothing is released. begin(), wait_for() and end() by one thread in turn;
/// release() by any. A job sees all that happened before its release; after end() the caller sees
/// all that jobs did.
class CommunicationThread {
 public:
  /// What `job` uses must outlive this. It runs only between begin() and end().
  explicit CommunicationThread(std::function<void(size_t)> job);
  /// Waits for a job under way.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  void begin();
  /// Jobs 0 to num_jobs, exclusive, may be done. Fewer than before has no effect.
  void release(size_t num_jobs);
  /// Waits until so many jobs are done, which must have been released; false if one has thrown.
  bool wait_for(size_t num_jobs);
  /// Waits for a job under way; none is begun any more. Returns how many were done, or throws what
  /// a job threw (none was begun after it).
  size_t end();

 private:
  void run();
  bool may_start() const { return is_open_ && !fault_ && num_done_ < num_released_; }

  const std::function<void(size_t)> job_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  // guarded by mutex_
  bool is_open_ = false;
  bool is_busy_ = false;
  bool must_end_ = false;
  size_t num_released_ = 0;
  size_t num_done_ = 0;
  std::exception_ptr fault_;

  std::thread thread_;  // last: it uses the rest
};

}  // namespace lockstep::dist
