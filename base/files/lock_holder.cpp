#include "base/files/lock_holder.h"
#include "base/process/proc.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace lockstep::files {
namespace {

/// Returns this host's name.
std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Returns the PID namespace of this process; pids are only comparable within one.
std::string pid_space_of_self() {
  std::array<char, 64> name{};
  return ::readlink("/proc/self/ns/pid", name.data(), name.size() - 1) > 0 ? name.data() : "";
}

/// Returns a process's start in ticks since boot; 0 if there is no such process.
int64_t start_ticks_of(int64_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = line.rfind(')');  // the name may contain any characters
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  if (fields >> field && (field == "Z" || field == "X")) return 0;  // dead, not yet reaped
  // Field 22 of /proc/PID/stat is the start time (proc(5)).
  for (int i = 4; i <= 22; ++i) fields >> field;
  int64_t ticks = 0;
  std::from_chars(field.data(), field.data() + field.size(), ticks);
  return ticks;
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

}  // namespace lockstep::files
