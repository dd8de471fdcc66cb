// The lock file PREFIX.saving. Its name can change owner while we wait: a holder unlinks it,
// another user replaces it. So after each flock we compare the locked inode with the one that has
// the name.
#include "checkpoint/files/save_lock.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
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
#include "base/files/files.h"
#include "base/files/lock_holder.h"
#include "base/log.h"
#include "checkpoint/files/save_files.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxJournalBytes = int64_t{1} << 20;
/// Age in seconds after which a save noted by another host counts as interrupted.
constexpr int64_t kLongestSaveS = 600;

/// Throws for a failed call. A full or failing disk is kIo, everything else kCannotCreate.
[[noreturn]] void fail(const std::string& path, const char* call) {
  const int number = errno;
  const bool is_disk = number == ENOSPC || number == EIO || number == EDQUOT || number == EFBIG;
  throw Error(is_disk ? ExitCode::kIo : ExitCode::kCannotCreate, "checkpoint",
              fmt::format("{}: {}: {}", path, call, std::strerror(number)));
}

/// Throws for a file that exists but cannot be opened, with its owner and mode.
[[noreturn]] void refuse_foreign(const std::string& path) {
  struct stat file {};
  (void)::stat(path.c_str(), &file);
  throw Error(
      ExitCode::kCannotCreate, "checkpoint",
      fmt::format("{} belongs to user {} (mode {:04o}) and may not be read by this one, so that "
                  "nobody can tell whether a program of that user is saving here; once none is, "
                  "that user may remove it; or choose another prefix",
                  path, file.st_uid, file.st_mode & 07777));
}

/// True for the errors of file systems without flock.
bool has_no_locks(int number) {
  return number == ENOSYS || number == EOPNOTSUPP || number == ENOLCK;
}

/// Logs once per process that the file system has no locks.
void warn_once(const std::string& path) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  log::warning("checkpoint",
               fmt::format("{}: this file system has no locks, so two programs that save under one "
                           "prefix at the same time may take the same number",
                           path));
}

/// Returns the numbers of the first line, up to the first word that is not a number.
std::set<int64_t> numbers_in(const std::string& text) {
  std::istringstream line(text.substr(0, text.find('\n')));
  std::set<int64_t> numbers;
  for (int64_t number = 0; line >> number && number >= 0;) numbers.insert(number);
  return numbers;
}

/// Parses the holder, which starts on the second line.
std::optional<files::LockHolder> holder_of(const std::string& text) {
  const size_t line = text.find('\n');
  return files::LockHolder::parse(
      line == std::string::npos ? std::string_view() : std::string_view(text).substr(line + 1));
}

/// Returns the holder as text for messages.
std::string holder_in(const std::string& text) {
  const auto holder = holder_of(text);
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
    // Before reading the journal: the replacement has the same text and is ours to rewrite.
    if (!may_write_) replace_by_own();
    left_over_ = left_over_in(text_of(descriptor_));
    may_go_ = left_over_.empty();
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

/// Returns the numbers of interrupted saves. On some file systems a lock covers one host only. So a
/// recent entry of another host may be a save in progress.
std::set<int64_t> SaveLock::left_over_in(const std::string& text) const {
  std::set<int64_t> numbers = numbers_in(text);
  const auto holder = holder_of(text);
  struct stat file {};
  if (numbers.empty() || !holder || holder->is_on_this_kernel() ||
      ::fstat(descriptor_, &file) != 0 || std::time(nullptr) - file.st_mtime >= kLongestSaveS)
    return numbers;
  log::warning("checkpoint",
               fmt::format("{}: {} noted a save {} s ago: its files stay, as this file system's "
                           "locks may not reach other hosts (`lockstep ckpt gc` removes them)",
                           path_, holder->shown(), std::time(nullptr) - file.st_mtime));
  return {};
}

SaveLock::~SaveLock() {
  // Unlink while the lock is held: no other program can hold it yet.
  if (may_go_ && is_still_the_file()) (void)::unlink(path_.c_str());
  ::close(descriptor_);
}

/// Opens the lock file. Returns false if the file vanished between two attempts, so that the caller
/// retries.
bool SaveLock::open_once() {
  // The second try is without O_CREAT: a world-writable folder (/tmp) refuses O_CREAT for another
  // user's file.
  for (const int flags : {O_RDWR | O_CREAT, O_RDWR, O_RDONLY}) {
    descriptor_ = files::open_lock_file(path_, flags);
    may_write_ = (flags & O_RDWR) != 0;
    if (descriptor_ >= 0) return true;
    if (errno == ENOENT && (flags & O_CREAT) == 0) return false;
    if (errno != EACCES) fail(path_, "open");
  }
  if (::access(path_.c_str(), F_OK) == 0) refuse_foreign(path_);
  return false;
}

void SaveLock::reopen() {
  if (descriptor_ >= 0) ::close(descriptor_);
  const std::filesystem::path named = std::filesystem::path(path_).parent_path();
  const std::string folder = named.empty() ? "." : named.string();
  // If this user may not create files in the folder, retrying does not help.
  // Other programs may create and remove the file between our attempts; more rounds mean a defect.
  constexpr int kMaxRounds = 100;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (open_once()) return;
    if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) break;
  }
  throw Error(ExitCode::kCannotCreate, "checkpoint",
              fmt::format("{}: permission denied: this user (id {}) may not make files in {}, as "
                          "every save does; give it that right, or choose another folder",
                          path_, ::geteuid(), folder));
}

/// Replaces another user's file. The old file's lock is held meanwhile. The new file is locked
/// before it gets the name, so no other program can take it in between.
void SaveLock::replace_by_own() {
  const std::string text = text_of(descriptor_);
  const std::string mine = path_ + std::string(kTemporarySuffix);
  (void)::unlink(mine.c_str());
  const int descriptor = files::open_lock_file(mine, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor < 0) fail(mine, "open");
  const bool is_whole =
      ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!is_whole || (is_held_ && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0) ||
      ::rename(mine.c_str(), path_.c_str()) != 0) {
    const int number = errno;
    (void)::unlink(mine.c_str());
    ::close(descriptor);
    errno = number;
    fail(path_, "replace another user's file");
  }
  ::close(descriptor_);
  descriptor_ = descriptor;
  may_write_ = true;
}

/// True if the locked file still has the name. The previous holder may have unlinked it while we
/// waited.
bool SaveLock::is_still_the_file() const {
  struct stat held {
  }, named{};
  return ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

/// Takes the lock; false on a file system without locks.
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
    // Backs off up to 50 ms between attempts.
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
  // Truncate last: while the file is too long, its first line is already the new one.
  if (::ftruncate(descriptor_, static_cast<off_t>(text.size())) != 0) fail(path_, "write");
}

}  // namespace lockstep::checkpoint
