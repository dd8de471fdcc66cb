#include "base/folder_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace lockstep::files {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void note_holder(int descriptor, const std::filesystem::path& path) {
  const std::string holder = fmt::format("pid {} on {}", ::getpid(), host_name());
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, holder.data(), holder.size(), 0) < 0)
    log::warning("files", path.string() + ": cannot note who holds it: " + std::strerror(errno));
}

enum class Outcome { kLocked, kTaken, kNoLocksHere };

/// Throws for anything but a lock, a holder, or a file system without locks.
Outcome try_lock(int descriptor, const std::filesystem::path& path, double patience_s) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK) return Outcome::kNoLocksHere;
    if (reason != EWOULDBLOCK && reason != EINTR)
      throw Error(ExitCode::kIo, "files", path.string() + ": flock: " + std::strerror(reason));
    if (std::chrono::steady_clock::now() > deadline) return Outcome::kTaken;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return Outcome::kLocked;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, double patience_s)
    : file_(folder / ".lock") {
  const std::filesystem::path path = folder / ".lock";
  switch (try_lock(file_.value(), path, patience_s)) {
    case Outcome::kLocked:
      note_holder(file_.value(), path);
      break;
    case Outcome::kNoLocksHere:
      log::warning("files", folder.string() +
                                ": this file system has no locks; see to it yourself that "
                                "only one run uses the folder");
      break;
    case Outcome::kTaken:
      throw Error(ExitCode::kCannotCreate, "files",
                  fmt::format("{} is in use by another run ({}): wait for it to end, or choose "
                              "another run.project_dir",
                              folder.string(), read(path, 4096)));
  }
}

FolderLock::File::File(const std::filesystem::path& path)
    : value_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (value_ < 0)
    throw Error(ExitCode::kCannotCreate, "files", path.string() + ": " + std::strerror(errno));
}

FolderLock::File::~File() { ::close(value_); }

}  // namespace lockstep::files
