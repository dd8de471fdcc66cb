#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::dist {

/// Thread that executes jobs 0, 1, 2, ... of a round in order, each after its release.
///
///   begin();  release(2);  release(5);  ...  num_done = end();   // the caller executes the rest
///
/// The thread sleeps while no released job is left. One thread at a time calls begin(), wait_for()
/// and end(); any thread calls release(). A job sees all writes made before its release. After
/// end() the caller sees all writes of the jobs.
class CommunicationThread {
 public:
  /// Objects that `job` uses must outlive this. `job` runs only between begin() and end().
  explicit CommunicationThread(std::function<void(size_t)> job);
  /// Waits for the running job.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  void begin();
  /// Allows jobs 0 to num_jobs, exclusive. A smaller number than before has no effect.
  void release(size_t num_jobs);
  /// Waits until `num_jobs` jobs are done, which must have been released. False if one has thrown.
  bool wait_for(size_t num_jobs);
  /// Ends the round: waits for the running job and starts no other. Returns the number of jobs
  /// done, or throws what a job threw (no job starts after that one).
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

  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep::dist
