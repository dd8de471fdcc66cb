#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>

/// Check of passwords against bcrypt hashes.
namespace lockstep::metrics {

/// Returns the fault of a text as a bcrypt hash ("is not a bcrypt hash ..."); empty if it is valid.
/// Accepts $2a$, $2b$ and $2y$ with a cost of 4 to 14. A higher cost would take seconds per login.
std::string fault_of_bcrypt_hash(const std::string& hash);

/// True if the password has this hash (libcrypt). Slow by design, as the hash's cost says. False
/// for a password with a NUL or above 72 bytes, which bcrypt would truncate. Any thread.
bool has_bcrypt_hash(std::string_view password, const std::string& hash);

/// Compares passwords with bcrypt hashes on a separate thread, so that the server's thread never
/// waits. At most kMaxWaiting attempts wait, one per client. Any thread may call it.
class PasswordChecker {
 public:
  static constexpr size_t kMaxWaiting = 16;
  /// Called on the checker's thread; not at all if stop() comes first.
  using Done = std::function<void(bool is_right)>;

  /// Hashes must be valid for fault_of_bcrypt_hash().
  explicit PasswordChecker(std::map<std::string, std::string> hash_by_user);
  ~PasswordChecker() { stop(); }
  PasswordChecker(const PasswordChecker&) = delete;
  PasswordChecker& operator=(const PasswordChecker&) = delete;

  /// Queues an attempt. Returns false, and never calls `done`, if too many wait or one of this
  /// client (its address) waits. An unknown user takes as long as a known one.
  bool check(const std::string& client, std::string user, std::string password, Done done);

  /// Ends the thread after the current comparison and drops waiting attempts. Do not call check()
  /// afterwards.
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
  std::set<std::string> clients_;  // guarded by mutex_: with an attempt
  std::jthread thread_;            // declared last: joined first
};

}  // namespace lockstep::metrics
