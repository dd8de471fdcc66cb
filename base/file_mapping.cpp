#include "base/file_mapping.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // the C library's headers may be older than the kernel
#endif

namespace lockstep::files {
namespace {

/// Whether the kernel reads pages on demand and tells of a fault with an error, not with SIGBUS.
bool can_populate(char* begin) { return ::madvise(begin, 0, MADV_POPULATE_READ) == 0; }

/// The pages that hold these bytes, read from the disk.
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
  (void)::madvise(memory, num_bytes, is_copy_ ? MADV_HUGEPAGE : MADV_SEQUENTIAL);  // a wish
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
  if (populate(bytes, num_bytes)) return bytes;
  std::string text(static_cast<size_t>(num_bytes), '\0');
  file_.read_at(offset, text);  // says what is wrong with them
  if (populate(bytes, num_bytes)) return bytes;
  throw Error(ExitCode::kIo, "files",
              file_.path().string() + ": bytes " + std::to_string(offset) + " to " +
                  std::to_string(offset + num_bytes) +
                  " cannot be mapped: " + std::strerror(errno));
}

void Mapping::release() {
  if (bytes_ != nullptr)
    (void)::madvise(bytes_, static_cast<size_t>(file_.num_bytes()), MADV_DONTNEED);
}

}  // namespace lockstep::files
