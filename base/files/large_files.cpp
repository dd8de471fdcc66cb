// Mappings and direct writes.
#include "base/files/large_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // the C library's headers may be older than the kernel
#endif

namespace lockstep::files {

// Mapping: MADV_POPULATE_READ reports a disk fault as an error, where a plain access would end the
// process with SIGBUS.

namespace {

/// True if the kernel populates pages on request and reports a fault as an error, not as SIGBUS.
bool can_populate(char* begin) { return ::madvise(begin, 0, MADV_POPULATE_READ) == 0; }

// A small step keeps several reading threads on one read-ahead window.
constexpr int64_t kStepBytes = int64_t{256} << 10;

/// Calls use(offset, num_bytes) for consecutive steps of the range.
template <typename Use>
void for_each_step(int64_t offset, int64_t num_bytes, Use use) {
  for (int64_t at = 0; at < num_bytes; at += kStepBytes)
    use(offset + at, std::min(kStepBytes, num_bytes - at));
}

/// True if the byte can be read without waiting for a disk; false if the file system cannot tell.
bool is_cached(const Reader& file, int64_t offset) {
  char byte = 0;
  const iovec to{&byte, 1};
  return ::preadv2(file.descriptor(), &to, 1, offset, RWF_NOWAIT) == 1;
}

/// Loads bytes into the page cache by reading them. Several threads that read share the system's
/// read-ahead. Several threads that populate do not, and reach a quarter of the speed.
void read_through(const Reader& file, int64_t offset, int64_t num_bytes) {
  thread_local std::vector<char> scrap(static_cast<size_t>(kStepBytes));
  file.read_at(offset, {scrap.data(), static_cast<size_t>(num_bytes)});
}

/// Maps the pages of these bytes; reads those from the disk that are not cached.
bool populate(char* bytes, int64_t num_bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes) % page);
  const auto length = static_cast<size_t>(before + num_bytes);
  int result = 0;
  do {
    result = ::madvise(bytes - before, length, MADV_POPULATE_READ);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result == 0;
}

}  // namespace

Mapping::Mapping(const Reader& file) : file_(file) {
  const auto num_bytes = static_cast<size_t>(file.num_bytes());
  if (num_bytes == 0) return;
  void* memory = ::mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory != MAP_FAILED && !can_populate(static_cast<char*>(memory))) {
    ::munmap(memory, num_bytes);
    memory = MAP_FAILED;
  }
  // Fallback: anonymous memory, into which fetch() reads.
  if (memory == MAP_FAILED) {
    is_copy_ = true;
    memory = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (memory == MAP_FAILED)
    throw Error(ExitCode::kIo, "files",
                file.path().string() + ": no address space for its " + std::to_string(num_bytes) +
                    " bytes (" + std::strerror(errno) + "); raise `ulimit -v`");
  bytes_ = static_cast<char*>(memory);
  (void)::madvise(memory, num_bytes, is_copy_ ? MADV_HUGEPAGE : MADV_SEQUENTIAL);  // best effort
}

Mapping::~Mapping() {
  if (bytes_ != nullptr) ::munmap(bytes_, static_cast<size_t>(file_.num_bytes()));
}

const char* Mapping::fetch(int64_t offset, int64_t num_bytes) const {
  char* const bytes = bytes_ + offset;
  if (num_bytes == 0) return bytes;
  if (is_copy_) {
    file_.read_at(offset, {bytes, static_cast<size_t>(num_bytes)});
    return bytes;
  }
  // Read what is not cached first; populating then only maps pages.
  for_each_step(offset, num_bytes, [&](int64_t at, int64_t count) {
    if (!is_cached(file_, at + count - 1)) read_through(file_, at, count);
  });
  if (populate(bytes, num_bytes)) return bytes;
  for_each_step(offset, num_bytes, [&](int64_t at, int64_t count) {
    read_through(file_, at, count);  // its error states the fault
  });
  if (populate(bytes, num_bytes)) return bytes;
  throw Error(ExitCode::kIo, "files",
              file_.path().string() + ": bytes " + std::to_string(offset) + " to " +
                  std::to_string(offset + num_bytes) +
                  " cannot be mapped: " + std::strerror(errno));
}

void Mapping::release(int64_t offset, int64_t num_bytes) const {
  const int64_t page = ::sysconf(_SC_PAGESIZE), end = offset + num_bytes;
  // Partly covered pages may belong to another thread's range.
  const int64_t first = (offset + page - 1) / page * page;
  const int64_t last = end == file_.num_bytes() ? end : end / page * page;
  if (first < last)
    (void)::madvise(bytes_ + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

/// Throws Error(kIo) for a failed call, with a hint if the disk is full.
[[noreturn]] static void fail(const std::filesystem::path& path, const char* call, int number) {
  throw Error(
      ExitCode::kIo, "files",
      path.string() + ": " + call + ": " + std::strerror(number) +
          (number == ENOSPC ? "; free space, or lower checkpoint.keep_checkpoint_max" : ""));
}

DirectWriter::DirectWriter(const std::filesystem::path& path, int64_t num_bytes)
    : path_(path), num_bytes_(num_bytes) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  descriptor_ = Descriptor(::open(path.c_str(), kFlags | O_DIRECT, 0644));
  // EINVAL: the file system has no O_DIRECT.
  if (descriptor_.get() < 0 && errno == EINVAL)
    descriptor_ = Descriptor(::open(path.c_str(), kFlags, 0644));
  if (descriptor_.get() < 0 && (errno == ENOSPC || errno == EIO)) fail(path, "create", errno);
  if (descriptor_.get() < 0)
    throw Error(ExitCode::kCannotCreate, "files",
                path.string() + ": create: " + std::strerror(errno));
  take_space();
}

/// Reserves the space in advance, so that writes need not wait while the file system searches for
/// it.
void DirectWriter::take_space() {
  if (num_bytes_ == 0) return;
  int result = 0;
  do {
    result = ::fallocate(descriptor_.get(), 0, 0, num_bytes_);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail(path_, "fallocate", errno);
}

/// Writes bytes. Some file systems refuse O_DIRECT only at the first write. After a partial write
/// the rest may be unaligned. Both cases continue without O_DIRECT.
void DirectWriter::write(int64_t offset, std::span<const char> bytes) {
  bool is_direct = true;
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), offset);
    if (done >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(done));
      offset += done;
    } else if (errno == EINVAL && is_direct) {
      is_direct = false;
      (void)::fcntl(descriptor_.get(), F_SETFL,
                    0);  // clears O_DIRECT, the only flag set
    } else if (errno != EINTR) {
      fail(path_, "write", errno);
    }
  }
}

void DirectWriter::finish() {
  if (::ftruncate(descriptor_.get(), num_bytes_) != 0) fail(path_, "ftruncate", errno);
  // fsync also writes the size; O_DIRECT alone does not make data durable.
  if (::fsync(descriptor_.get()) != 0) fail(path_, "fsync", errno);
  if (::close(descriptor_.release()) != 0) fail(path_, "close", errno);
}

}  // namespace lockstep::files
