// open, pread, madvise, fsync, flock and pthread_create of this program, in front of the C
// library's.
#include "tests/checkpoint/faults/file_calls.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <iterator>
#include <mutex>
#include <stdexcept>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::checkpoint::tests {
namespace {

struct Plan {
  std::string call, path;
  int nth = 0;
  Strike what = Strike::kIoError;
  std::atomic<int> num_calls = 0;
  std::atomic<bool> reached = false;
};

constexpr int kMaxPlans = 2;
std::atomic<Plan*> plans[kMaxPlans];
std::atomic<std::vector<std::string>*> synced = nullptr;
std::mutex synced_mutex;

std::string path_of(int descriptor) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return {path, length > 0 ? static_cast<size_t>(length) : 0};
}

/// The plan, if this call is to be struck.
Plan* striking(const char* call, const std::string& path) {
  for (Plan* const now : plans) {
    if (now == nullptr || now->call != call || path.find(now->path) == std::string::npos) continue;
    const int number = ++now->num_calls;
    if (now->nth != 0 && number != now->nth) continue;
    now->reached = true;
    if (now->what == Strike::kKill) (void)::raise(SIGKILL);
    return now;
  }
  return nullptr;
}

bool is_disk_broken() {
  return std::any_of(std::begin(plans), std::end(plans), [](const Plan* one) {
    return one != nullptr && one->what == Strike::kBrokenDisk && one->reached;
  });
}

bool is_any_call_struck() {
  return std::any_of(std::begin(plans), std::end(plans),
                     [](const std::atomic<Plan*>& one) { return one != nullptr; });
}

int fails(Strike what) {
  errno = what == Strike::kNoPermission ? EACCES
          : what == Strike::kInvalid    ? EINVAL
          : what == Strike::kNoLocks    ? ENOSYS
                                        : EIO;
  return -1;
}

}  // namespace

StruckCall::StruckCall(std::string call, std::string path, int nth, Strike what) {
  while (slot_ < kMaxPlans && plans[slot_] != nullptr) ++slot_;
  if (slot_ == kMaxPlans) throw std::logic_error("too many calls are struck at a time");
  auto* const made = new Plan;
  made->call = std::move(call);
  made->path = std::move(path);
  made->nth = nth;
  made->what = what;
  plans[slot_] = made;
}

StruckCall::~StruckCall() { delete plans[slot_].exchange(nullptr); }

bool StruckCall::was_reached() const { return plans[slot_].load()->reached; }

SyncedPaths::SyncedPaths() { synced = new std::vector<std::string>; }

SyncedPaths::~SyncedPaths() { delete synced.exchange(nullptr); }

std::vector<std::string> SyncedPaths::paths() const {
  const std::lock_guard lock(synced_mutex);
  return *synced.load();
}

ssize_t struck_pread(int descriptor, void* bytes, size_t num_bytes, off_t offset) {
  const Plan* struck = is_any_call_struck() ? striking("pread", path_of(descriptor)) : nullptr;
  if (is_disk_broken()) return fails(Strike::kIoError);
  if (struck == nullptr) return ::syscall(SYS_pread64, descriptor, bytes, num_bytes, offset);
  if (struck->what == Strike::kEnd) return 0;
  if (struck->what == Strike::kShort) num_bytes = (num_bytes + 1) / 2;
  if (struck->what != Strike::kFlip && struck->what != Strike::kShort) return fails(struck->what);
  const ssize_t count = ::syscall(SYS_pread64, descriptor, bytes, num_bytes, offset);
  if (struck->what == Strike::kFlip && count > 0) static_cast<char*>(bytes)[count / 2] ^= 4;
  return count;
}

int struck_madvise(void* begin, size_t num_bytes, int advice) {
  if (advice == MADV_POPULATE_READ)
    if (const Plan* struck = striking("madvise", "")) return fails(struck->what);
  return static_cast<int>(::syscall(SYS_madvise, begin, num_bytes, advice));
}

int struck_fsync(int descriptor) {
  const std::string path = path_of(descriptor);
  if (auto* const list = synced.load()) {
    const std::lock_guard lock(synced_mutex);
    list->push_back(path);
  }
  if (const Plan* struck = striking("fsync", path)) return fails(struck->what);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

int struck_flock(int descriptor, int operation) {
  if (const Plan* struck = is_any_call_struck() ? striking("flock", path_of(descriptor)) : nullptr)
    return fails(struck->what);
  return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
}

int struck_open(const char* path, int flags, mode_t mode) {
  if (const Plan* struck = striking("open", path)) return fails(struck->what);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int struck_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                          void* argument) {
  if (striking("pthread_create", "") != nullptr) return EAGAIN;
  static auto* const real =
      reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, body, argument);
}

}  // namespace lockstep::checkpoint::tests

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  return lockstep::checkpoint::tests::struck_pthread_create(thread, attributes, body, argument);
}

ssize_t pread(int descriptor, void* bytes, size_t num_bytes, off_t offset) {
  return lockstep::checkpoint::tests::struck_pread(descriptor, bytes, num_bytes, offset);
}

int madvise(void* begin, size_t num_bytes, int advice) {
  return lockstep::checkpoint::tests::struck_madvise(begin, num_bytes, advice);
}

int flock(int descriptor, int operation) {
  return lockstep::checkpoint::tests::struck_flock(descriptor, operation);
}

int fsync(int descriptor) { return lockstep::checkpoint::tests::struck_fsync(descriptor); }

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return lockstep::checkpoint::tests::struck_open(path, flags, mode);
}

}  // extern "C"
