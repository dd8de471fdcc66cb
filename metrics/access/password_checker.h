#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace lockstep::metrics {

/// Compares passwords with bcrypt hashes on a thread of its own, one after the other, so that
/// whoever tries many costs little: at most kMaxWaiting wait, one of each client, and after a wrong
/// one the thread rests nine times as long as it worked. It has a low priority, so that training
/// goes first. Any thread may call.
class PasswordChecker {
 public:
  static constexpr size_t kMaxWaiting = 16;
  /// Called on the checker's thread; not at all if stop() comes before.
  using Done = std::function<void(bool is_right)>;

  /// Hashes that fault_of_bcrypt_hash() finds nothing wrong with.
  explicit PasswordChecker(std::map<std::string, std::string> hash_by_user);
  ~PasswordChecker() { stop(); }
  PasswordChecker(const PasswordChecker&) = delete;
  PasswordChecker& operator=(const PasswordChecker&) = delete;

  /// False, and `done` is never called, if too many wait, or one of this client (its address). An
  /// unknown user takes as long as a known one.
  bool check(const std::string& client, std::string user, std::string password, Done done);

  /// Ends the thread, once the comparison under way is done, and drops what waits. No check()
  /// after it.
  void stop();

 private:
  struct Try {
    std::string client, user, password;
    Done done;
  };

  void run(const std::stop_token& stopped);
  bool is_right(const Try& one) const;

  const std::map<std::string, std::string> hash_by_user_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Try> waiting_;        // guarded by mutex_
  std::set<std::string> clients_;  // guarded by mutex_: of those that wait or are looked at
  std::jthread thread_;            // last: joined first
};

}  // namespace lockstep::metrics
