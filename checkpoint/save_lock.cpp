#include "checkpoint/save_lock.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/lock_holder.h"
#include "base/log.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxJournalBytes = int64_t{1} << 20;

[[noreturn]] void fail(const std::string& path, const char* call) {
  const int number = errno;
  const bool is_disk = number == ENOSPC || number == EIO || number == EDQUOT || number == EFBIG;
  throw Error(is_disk ? ExitCode::kIo : ExitCode::kCannotCreate, "checkpoint",
              fmt::format("{}: {}: {}", path, call, std::strerror(number)));
}

bool has_no_locks(int number) {
  return number == ENOSYS || number == EOPNOTSUPP || number == ENOLCK;
}

void warn_once(const std::string& path) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  log::warning("checkpoint",
               fmt::format("{}: this file system has no locks, so two programs that save under one "
                           "prefix at the same time may take the same number",
                           path));
}

/// The first line; whatever is no number ends it.
std::set<int64_t> numbers_in(const std::string& text) {
  std::istringstream line(text.substr(0, text.find('\n')));
  std::set<int64_t> numbers;
  for (int64_t number = 0; line >> number && number >= 0;) numbers.insert(number);
  return numbers;
}

/// The second line on, for people.
std::string holder_in(const std::string& text) {
  const size_t line = text.find('\n');
  const auto holder = files::LockHolder::parse(
      line == std::string::npos ? std::string_view() : std::string_view(text).substr(line + 1));
  return holder ? holder->shown() : "which has not said yet who it is";
}

std::string text_of(int descriptor) {
  std::string text(static_cast<size_t>(kMaxJournalBytes), '\0');
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

}  // namespace

SaveLock::SaveLock(const std::string& prefix, double patience_s)
    : path_(prefix + std::string(kJournalSuffix)) {
  try {
    reopen();
    is_held_ = take(patience_s);
    if (!is_held_) warn_once(path_);
    left_over_ = numbers_in(text_of(descriptor_));
    may_go_ = left_over_.empty();
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

SaveLock::~SaveLock() {
  // first the name, while nobody else can hold the lock
  if (may_go_ && is_still_the_file()) (void)::unlink(path_.c_str());
  ::close(descriptor_);
}

void SaveLock::reopen() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path_, "open");
}

/// The one before may have removed the name of the file that was waited for.
bool SaveLock::is_still_the_file() const {
  struct stat held {
  }, named{};
  return ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

/// False on a file system without locks.
bool SaveLock::take(double patience_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s);
  std::chrono::duration<double> pause(0.001);
  while (true) {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
      if (is_still_the_file()) return true;
    } else {
      if (has_no_locks(errno)) return false;
      if (errno != EWOULDBLOCK && errno != EINTR) fail(path_, "flock");
    }
    if (Clock::now() > deadline)
      throw Error(ExitCode::kCannotCreate, "checkpoint",
                  fmt::format("{}: another program is saving under this prefix ({}) and was waited "
                              "for {} s; wait for it to end, or choose another prefix",
                              path_, holder_in(text_of(descriptor_)), patience_s));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 1.5, std::chrono::duration<double>(0.05));
    if (!is_still_the_file()) reopen();
  }
}

void SaveLock::note(const std::set<int64_t>& numbers) {
  may_go_ = false;
  const std::string text =
      fmt::format("{}\n{}", fmt::join(numbers, " "), files::LockHolder::self().file_text());
  for (size_t at = 0; at < text.size();) {
    const ssize_t count =
        ::pwrite(descriptor_, text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (count < 0 && errno != EINTR) fail(path_, "write");
    at += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(text.size())) != 0) fail(path_, "write");
}

}  // namespace lockstep::checkpoint
