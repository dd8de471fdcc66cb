#include "metrics/access/password_checker.h"

#include <sys/resource.h>
#include <unistd.h>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/threads/signals_blocked.h"
#include "metrics/access/bcrypt.h"

namespace lockstep::metrics {
namespace {

// Priority of the thread, and its pause after a wrong password as a multiple of the work.
constexpr int kNiceness = 10;
constexpr int kRestFactor = 9;
using Clock = std::chrono::steady_clock;

}  // namespace

PasswordChecker::PasswordChecker(std::map<std::string, std::string> hash_by_user)
    : hash_by_user_(std::move(hash_by_user)) {
  lockstep::check(!hash_by_user_.empty(), "there are users");
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::jthread([this](const std::stop_token& stopped) { run(stopped); });
  ::pthread_setname_np(thread_.native_handle(), "lockstep-login");
}

void PasswordChecker::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  std::deque<Try> dropped;  // destroyed after the lock, since it may be large
  const std::lock_guard lock(mutex_);
  dropped.swap(waiting_);
}

bool PasswordChecker::check(const std::string& client, std::string user, std::string password,
                            Done done) {
  {
    const std::lock_guard lock(mutex_);
    // One attempt per client: a client cannot fill the queue alone.
    if (waiting_.size() >= kMaxWaiting || !clients_.insert(client).second) return false;
    waiting_.push_back({client, std::move(user), std::move(password), std::move(done)});
  }
  changed_.notify_one();
  return true;
}

bool PasswordChecker::is_right(const Try& one) const {
  const auto found = hash_by_user_.find(one.user);
  // Compare with some hash for an unknown user too, so that the time does not reveal which users
  // exist.
  const bool is_known = found != hash_by_user_.end();
  const std::string& hash = is_known ? found->second : hash_by_user_.begin()->second;
  return has_bcrypt_hash(one.password, hash) && is_known;
}

void PasswordChecker::run(const std::stop_token& stopped) {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);  // of this thread only
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stopped, [this] { return !waiting_.empty(); })) {
    if (stopped.stop_requested()) return;
    const Try one = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const Clock::time_point start = Clock::now();
    const bool right = is_right(one);
    const Clock::duration worked = Clock::now() - start;
    // Without the lock: the callback may do anything.
    one.done(right);
    lock.lock();
    if (!right) changed_.wait_for(lock, stopped, kRestFactor * worked, [] { return false; });
    // Only now may the same client try again.
    clients_.erase(one.client);
  }
}

}  // namespace lockstep::metrics
