// A library for LD_PRELOAD: one call of the process that touches a file fails, or ends it. Unlike
// strace it counts over all threads, and needs no right to trace.
//
//   LOCKSTEP_FAULT_RANK    which rank (OMPI_COMM_WORLD_RANK)
//   LOCKSTEP_FAULT_PATH    only calls on a path that holds this text count
//   LOCKSTEP_FAULT_CALL    open | fallocate | pwrite | write | ftruncate | fsync | close | rename |
//                          unlink | mkdir | any
//   LOCKSTEP_FAULT_AT      which of them, from 1; "7+": all from the seventh on; "7*": each seventh
//   LOCKSTEP_FAULT_DO      ENOSPC | EIO: it fails so, without effect; KILL: SIGKILL before it;
//                          SLEEP: it begins a fifth of a second late; WAIT: it begins once there is
//                          a file of the report's name with .go behind it
//   LOCKSTEP_FAULT_REPORT  a file that gets a line for each call that was struck

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

std::string text_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

struct Plan {
  std::string path = text_from("LOCKSTEP_FAULT_PATH");
  std::string call = text_from("LOCKSTEP_FAULT_CALL");
  std::string what = text_from("LOCKSTEP_FAULT_DO");
  std::string report = text_from("LOCKSTEP_FAULT_REPORT");
  std::string when = text_from("LOCKSTEP_FAULT_AT");
  long at = std::atol(when.c_str());
  bool and_later = when.ends_with('+'), each = when.ends_with('*');
  bool is_mine = at > 0 && text_from("OMPI_COMM_WORLD_RANK") == text_from("LOCKSTEP_FAULT_RANK");
  std::atomic<long> num_calls = 0;
};

/// Lives as long as the process: calls come before main() and after it.
Plan& plan() {
  static auto* const the_plan = new Plan;
  return *the_plan;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int descriptor) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return {path, length > 0 ? static_cast<size_t>(length) : 0};
}

void note(const char* call, const std::string& path, long number) {
  static auto* const real_open = next<int(const char*, int, ...)>("open");
  static auto* const real_write = next<ssize_t(int, const void*, size_t)>("write");
  static auto* const real_close = next<int(int)>("close");
  const std::string line = std::string(call) + " " + std::to_string(number) + " " + path + "\n";
  const int file = real_open(plan().report.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  (void)!real_write(file, line.data(), line.size());
  real_close(file);
}

/// True: the call must fail, errno says how.
bool is_struck(const char* call, const std::string& path) {
  Plan& p = plan();
  if (!p.is_mine || (p.call != "any" && p.call != call)) return false;
  if (path.find(p.path) == std::string::npos) return false;
  const long number = ++p.num_calls;
  const bool is_due = p.each ? number % p.at == 0 : p.and_later ? number >= p.at : number == p.at;
  if (!is_due) return false;
  note(call, path, number);
  if (p.what == "KILL") (void)std::raise(SIGKILL);
  if (p.what == "SLEEP") ::usleep(200'000);
  if (p.what == "WAIT")
    while (::access((p.report + ".go").c_str(), F_OK) != 0) ::usleep(10'000);
  errno = p.what == "ENOSPC" ? ENOSPC : EIO;
  return p.what == "ENOSPC" || p.what == "EIO";
}

bool is_struck(const char* call, int descriptor) {
  return plan().is_mine && is_struck(call, path_of(descriptor));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return is_struck("open", path) ? -1 : real(path, flags, mode);
}
int fallocate(int file, int mode, off_t offset, off_t length) {
  static auto* const real = next<int(int, int, off_t, off_t)>("fallocate");
  return is_struck("fallocate", file) ? -1 : real(file, mode, offset, length);
}
ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return is_struck("pwrite", file) ? -1 : real(file, bytes, count, offset);
}
ssize_t write(int file, const void* bytes, size_t count) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return is_struck("write", file) ? -1 : real(file, bytes, count);
}
int ftruncate(int file, off_t length) noexcept {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  return is_struck("ftruncate", file) ? -1 : real(file, length);
}
int fsync(int file) {
  static auto* const real = next<int(int)>("fsync");
  return is_struck("fsync", file) ? -1 : real(file);
}
/// The descriptor is gone whatever close() returns.
int close(int file) {
  static auto* const real = next<int(int)>("close");
  const bool struck = is_struck("close", file);
  const int number = errno;
  const int result = real(file);
  if (!struck) return result;
  errno = number;
  return -1;
}
int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return is_struck("rename", to) ? -1 : real(from, to);
}
int unlink(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("unlink");
  return is_struck("unlink", path) ? -1 : real(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  return is_struck("mkdir", path) ? -1 : real(path, mode);
}

}  // extern "C"
