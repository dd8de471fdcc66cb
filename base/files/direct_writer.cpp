#include "base/files/direct_writer.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace lockstep::files {
namespace {

/// Throws Error(kIo) for a failed call, with a hint if the disk is full.
[[noreturn]] void fail(const std::filesystem::path& path, const char* call, int number) {
  throw Error(ExitCode::kIo, "files",
              path.string() + ": " + call + ": " + std::strerror(number) +
                  (number == ENOSPC ? "; make room, or lower checkpoint.keep_checkpoint_max" : ""));
}

}  // namespace

DirectWriter::DirectWriter(const std::filesystem::path& path, int64_t num_bytes)
    : path_(path), num_bytes_(num_bytes) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  descriptor_ = ::open(path.c_str(), kFlags | O_DIRECT, 0644);
  // EINVAL: the file system has no O_DIRECT.
  if (descriptor_ < 0 && errno == EINVAL) descriptor_ = ::open(path.c_str(), kFlags, 0644);
  if (descriptor_ < 0 && (errno == ENOSPC || errno == EIO)) fail(path, "create", errno);
  if (descriptor_ < 0)
    throw Error(ExitCode::kCannotCreate, "files",
                path.string() + ": create: " + std::strerror(errno));
  try {
    take_space();
  } catch (const Error&) {
    ::close(descriptor_);  // a throwing constructor's destructor is not called
    throw;
  }
}

DirectWriter::~DirectWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

/// Reserves the space in advance, so that writes need not wait while the file system searches for
/// it.
void DirectWriter::take_space() {
  if (num_bytes_ == 0) return;
  int result = 0;
  do {
    result = ::fallocate(descriptor_, 0, 0, num_bytes_);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail(path_, "fallocate", errno);
}

/// Writes bytes. Some file systems refuse O_DIRECT only at the first write. After a partial write
/// the rest may be unaligned. Both cases continue without O_DIRECT.
void DirectWriter::write(int64_t offset, std::span<const char> bytes) {
  bool is_direct = true;
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (done >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(done));
      offset += done;
    } else if (errno == EINVAL && is_direct) {
      is_direct = false;
      (void)::fcntl(descriptor_, F_SETFL,
                    0);  // clears O_DIRECT, the only flag set
    } else if (errno != EINTR) {
      fail(path_, "write", errno);
    }
  }
}

void DirectWriter::finish() {
  if (::ftruncate(descriptor_, num_bytes_) != 0) fail(path_, "ftruncate", errno);
  // fsync also writes the size; O_DIRECT alone does not make data durable.
  if (::fsync(descriptor_) != 0) fail(path_, "fsync", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close", errno);
}

}  // namespace lockstep::files
