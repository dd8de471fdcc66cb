#include "base/files/folder_lock.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <map>
#include <random>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/threads.h"

namespace lockstep::files {
namespace {

/// Returns the PID namespace of this process; pids are only comparable within one.
std::string pid_space_of_self() {
  std::array<char, 64> name{};
  return ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1) > 0 ? name.data() : "";
}

std::string random_token() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

/// Returns a number of the file; 0 if it is missing.
int64_t number(const std::map<std::string, std::string>& facts, const std::string& key) {
  const auto place = facts.find(key);
  int64_t value = 0;
  if (place != facts.end())
    std::from_chars(place->second.data(), place->second.data() + place->second.size(), value);
  return value;
}

std::string text(const std::map<std::string, std::string>& facts, const std::string& key) {
  const auto place = facts.find(key);
  return place == facts.end() ? "" : place->second;
}

using Clock = std::chrono::steady_clock;

/// Returns the time in this many seconds.
Clock::time_point in(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::string reason() { return std::strerror(errno); }

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> out{};
  return {out.data(), std::strftime(out.data(), out.size(), "%Y-%m-%d %H:%M:%S", &parts)};
}

LockHolder LockHolder::self() {
  const std::string now = utc_now();
  return {.pid = ::getpid(),
          .host = host_name(),
          .since = now,
          .heartbeat = now,
          .boot = first_line("/proc/sys/kernel/random/boot_id"),
          .pid_space = pid_space_of_self(),
          .start_ticks = start_ticks_of(::getpid()),
          .token = random_token()};
}

// The file has lines "key: value"; unknown keys are ignored.
std::optional<LockHolder> LockHolder::parse(std::string_view file) {
  std::map<std::string, std::string> facts;
  std::istringstream lines{std::string(file)};
  for (std::string line; std::getline(lines, line);)
    if (const size_t colon = line.find(": "); colon != std::string::npos)
      facts[line.substr(0, colon)] = line.substr(colon + 2);
  LockHolder holder{.pid = number(facts, "pid"),
                    .host = text(facts, "host"),
                    .since = text(facts, "since"),
                    .heartbeat = text(facts, "heartbeat"),
                    .num_beats = number(facts, "beats"),
                    .boot = text(facts, "boot"),
                    .pid_space = text(facts, "pid_space"),
                    .start_ticks = number(facts, "started"),
                    .token = text(facts, "token")};
  const bool is_whole = holder.pid > 0 && !holder.token.empty();  // the token is last
  return is_whole ? std::optional(holder) : std::nullopt;
}

std::string LockHolder::file_text() const {
  // {:012}: the length stays equal, so that a heartbeat overwrites the text in place.
  return fmt::format(
      "pid: {}\nhost: {}\nsince: {}\nheartbeat: {}\nbeats: {:012}\nboot: {}\npid_space: {}\n"
      "started: {}\ntoken: {}\n",
      pid, host, since, heartbeat, num_beats, boot, pid_space, start_ticks, token);
}

std::string LockHolder::shown() const {
  return fmt::format("pid {} on {} since {} UTC, last heartbeat {} UTC", pid, host, since,
                     heartbeat);
}

bool LockHolder::is_on_this_kernel() const {
  return !boot.empty() && boot == first_line("/proc/sys/kernel/random/boot_id");
}

bool LockHolder::can_be_asked() const {
  return is_on_this_kernel() && !pid_space.empty() && pid_space == pid_space_of_self();
}

mode_t lock_mode(const std::filesystem::path& folder) {
  constexpr mode_t kOwner = S_IRUSR | S_IWUSR, kGroup = S_IRGRP | S_IWGRP,
                   kOthers = S_IROTH | S_IWOTH;
  struct stat facts {};
  if (::stat(folder.empty() ? "." : folder.c_str(), &facts) != 0) return kOwner;
  return kOwner | ((facts.st_mode & S_IWGRP) != 0 ? kGroup : 0) |
         ((facts.st_mode & S_IWOTH) != 0 ? kOthers : 0);
}

int open_lock_file(const std::filesystem::path& path, int flags) {
  const mode_t mode = lock_mode(path.parent_path());
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode);
  if (descriptor < 0) return -1;
  struct stat file {};
  if (::fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode)) {
    ::close(descriptor);
    errno = EINVAL;
    return -1;
  }
  // Corrects the umask's effect, and the mode of a file from an earlier version.
  if (file.st_uid == ::geteuid() && (file.st_mode & 07777) != mode)
    (void)::fchmod(descriptor, mode);
  return descriptor;
}

// A reused pid has another start time.
bool LockHolder::is_alive() const { return start_ticks != 0 && start_ticks_of(pid) == start_ticks; }

// FolderLock, order on construction: flock, judge a named holder, write our name, start the
// heartbeat thread.

FolderLock::FolderLock(const std::filesystem::path& folder, const FolderLockTimes& times)
    : folder_(folder), times_(times), file_(folder / ".lock"), self_(LockHolder::self()) {
  const bool is_locked = take_flock();
  judge_holder(is_locked);
  note_self(is_locked);
  // The heartbeat thread must not take signals meant for the main thread.
  const SignalsBlocked blocked;
  heart_ = std::jthread([this](const std::stop_token& stop) {
    while (!stops_within(std::chrono::duration<double>(times_.heartbeat_s), stop))
      if (!beat()) return;
  });
}

FolderLock::~FolderLock() {
  heart_.request_stop();
  heart_.join();
  // Another run may have taken the folder over; its text must stay.
  if (is_ours()) (void)file_.write("");
}

void FolderLock::refuse(const std::optional<LockHolder>& holder) const {
  throw Error(
      ExitCode::kCannotCreate, "files",
      fmt::format(
          "{} is in use by another run ({}): wait for it to end, or choose another run.project_dir",
          folder_.string(), holder ? holder->shown() : "holder unknown"));
}

/// Takes the flock; false on a file system without locks.
bool FolderLock::take_flock() {
  if (!times_.use_flock) return false;
  // Polls, because a blocking flock() has no timeout.
  const Clock::time_point deadline = in(times_.patience_s);
  while (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) return false;
    if (errno != EWOULDBLOCK && errno != EINTR)
      throw Error(ExitCode::kIo, "files", (folder_ / ".lock").string() + ": flock: " + reason());
    if (Clock::now() > deadline) refuse(file_.holder());
    sleep_s(0.05);
  }
  return true;
}

// With the flock held, a named holder on this kernel is dead. One in another PID namespace of this
// kernel cannot be asked. One on another host may hold a flock that we do not see.
void FolderLock::judge_holder(bool is_locked) {
  // Read after the flock, since the last holder writes until it releases.
  const std::optional<LockHolder> holder = file_.holder();
  if (!holder || (is_locked && holder->is_on_this_kernel())) return;
  if (!holder->can_be_asked()) {
    watch_heartbeat(*holder);
    return;
  }
  for (const Clock::time_point deadline = in(times_.patience_s); holder->is_alive();) {
    const auto now = file_.holder();
    if (!now || now->token != holder->token) return judge_holder(is_locked);  // released or taken
    if (Clock::now() > deadline) refuse(now);
    sleep_s(0.05);
  }
}

void FolderLock::watch_heartbeat(const LockHolder& holder) {
  log::info("files",
            fmt::format("{} was not released by {}: waiting up to {} s for a new heartbeat",
                        folder_.string(), holder.shown(), times_.heartbeat_patience_s));
  const Clock::time_point deadline = in(times_.heartbeat_patience_s);
  while (Clock::now() < deadline) {
    sleep_s(std::min(0.5, times_.heartbeat_patience_s / 20));
    const std::optional<LockHolder> now = file_.holder();
    if (!now) return;  // released meanwhile
    // A new token means a new holder, which is alive.
    if (now->token != holder.token || now->num_beats != holder.num_beats) refuse(now);
  }
  log::warning("files", fmt::format("{}: lock taken over from {}: no heartbeat for {} s",
                                    folder_.string(), holder.shown(), times_.heartbeat_patience_s));
}

void FolderLock::note_self(bool is_locked) {
  if (!file_.write(self_.file_text())) {
    log::warning("files", fmt::format("{}: cannot record the holder: {}",
                                      (folder_ / ".lock").string(), reason()));
    return;
  }
  if (is_locked) return;
  log::warning(
      "files",
      folder_.string() +
          ": this file system has no locks; only a heartbeat protects the folder from other runs");
  sleep_s(0.2);  // a simultaneous process has written by now, and the last writer wins
  if (!is_ours()) refuse(file_.holder());
}

/// True if the file names this lock. False also if it cannot be read, so that nothing is emptied.
bool FolderLock::is_ours() const {
  try {
    const std::optional<LockHolder> holder = file_.holder();
    return holder && holder->token == self_.token;
  } catch (const Error&) {
    return false;
  }
}

/// Writes a heartbeat; false if further heartbeats are useless.
bool FolderLock::beat() {
  try {
    if (const auto holder = file_.holder(); holder && holder->token != self_.token) {
      log::error("files",
                 fmt::format("{} was taken over by {} while this run was using it; stop one "
                             "of the two",
                             folder_.string(), holder->shown()));
      return false;
    }
  } catch (const Error& fault) {
    log::debug("files", fault.what());
    return true;  // the next heartbeat tries again
  }
  self_.heartbeat = utc_now();
  ++self_.num_beats;
  if (file_.write(self_.file_text()) || std::exchange(said_, true)) return true;
  log::warning(
      "files",
      fmt::format("{}: the heartbeat cannot be written: {}; other hosts may take over the folder",
                  (folder_ / ".lock").string(), reason()));
  return true;
}

FolderLock::File::File(const std::filesystem::path& path)
    : path_(path), descriptor_(open_lock_file(path, O_RDWR | O_CREAT)) {
  if (descriptor_.get() < 0)
    throw Error(ExitCode::kCannotCreate, "files", path.string() + ": " + std::strerror(errno));
}

std::string FolderLock::File::text() const {
  // Opened again, because network file systems check for another host's writes only then. Closing a
  // second descriptor does not release the flock of the first.
  std::array<char, 4096> bytes{};
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (attempt > 0) sleep_s(0.05);
    const int fresh = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fresh < 0 && errno == ENOENT) return "";
    const ssize_t count = fresh < 0 ? -1 : ::pread(fresh, bytes.data(), bytes.size(), 0);
    const int number = errno;
    if (fresh >= 0) ::close(fresh);
    if (count >= 0) return {bytes.data(), static_cast<size_t>(count)};
    errno = number;
  }
  throw Error(ExitCode::kIo, "files",
              path_.string() + ": cannot be read (" + reason() +
                  "), so it is unknown whether a run uses the folder; fix that, or remove the file "
                  "if none does");
}

std::optional<LockHolder> FolderLock::File::holder() const {
  // Several attempts: a read may fall between another host's write and truncation.
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::string now = text();
    const std::optional<LockHolder> holder = LockHolder::parse(now);
    if (holder || now.empty()) return holder;
    sleep_s(0.05);  // the network may have delivered half of the text
  }
  return std::nullopt;
}

bool FolderLock::File::write(const std::string& text) const {
  const auto size = static_cast<ssize_t>(text.size());
  return ::pwrite(descriptor_.get(), text.data(), text.size(), 0) == size &&
         ::ftruncate(descriptor_.get(), size) == 0 && ::fdatasync(descriptor_.get()) == 0;
}

}  // namespace lockstep::files
