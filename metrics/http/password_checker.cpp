#include "metrics/http/password_checker.h"

#include <memory>
#include <utility>

#include <crypt.h>
#include <fmt/format.h>
#include <openssl/crypto.h>

#include "base/error.h"
#include "base/threads.h"

namespace lockstep::metrics {
namespace {

constexpr size_t kHashBytes = 60;
constexpr size_t kSettingBytes = 29;  ///< $2b$10$ and 22 characters of salt
constexpr size_t kPasswordLimitBytes = 72;
constexpr int kMinCost = 4, kMaxCost = 14;
constexpr std::string_view kAlphabet =
    "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// True for "$2b$NN$" and 53 characters of bcrypt's alphabet.
bool has_form(std::string_view hash) {
  return hash.size() == kHashBytes &&
         (hash.starts_with("$2a$") || hash.starts_with("$2b$") || hash.starts_with("$2y$")) &&
         is_digit(hash[4]) && is_digit(hash[5]) && hash[6] == '$' &&
         hash.find_first_not_of(kAlphabet, 7) == hash.npos;
}

}  // namespace

std::string fault_of_bcrypt_hash(const std::string& hash) {
  if (!has_form(hash))
    return "is not a bcrypt hash ($2b$..., 60 characters; 'htpasswd -nBC 10 NAME' makes one)";
  const int cost = 10 * (hash[4] - '0') + (hash[5] - '0');
  if (cost < kMinCost || cost > kMaxCost)
    return fmt::format("has the cost {}: use one of {} to {}", cost, kMinCost, kMaxCost);
  return "";
}

// bcrypt would silently ignore bytes after these limits.
bool has_bcrypt_hash(std::string_view password, const std::string& hash) {
  if (password.size() > kPasswordLimitBytes || password.find('\0') != password.npos) return false;
  const auto space = std::make_unique<crypt_data>();  // 32 KiB: too much for a thread's stack
  const char* made =
      ::crypt_r(std::string(password).c_str(), hash.substr(0, kSettingBytes).c_str(), space.get());
  const std::string_view found = made == nullptr ? "" : made;
  // Constant time, so that the comparison reveals nothing about the hash.
  const bool equal =
      found.size() == hash.size() && CRYPTO_memcmp(found.data(), hash.data(), hash.size()) == 0;
  // The space contains traces of the password.
  OPENSSL_cleanse(space.get(), sizeof(*space));
  return equal;
}

PasswordChecker::PasswordChecker(std::map<std::string, std::string> hash_by_user)
    : hash_by_user_(std::move(hash_by_user)) {
  lockstep::check(!hash_by_user_.empty(), "users exist");
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
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stopped, [this] { return !waiting_.empty(); })) {
    if (stopped.stop_requested()) return;
    const Try one = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    // Without the lock: the comparison is slow, and the callback may do anything.
    one.done(is_right(one));
    lock.lock();
    // Only now may the same client try again.
    clients_.erase(one.client);
  }
}

}  // namespace lockstep::metrics
