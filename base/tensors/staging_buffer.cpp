#include "base/tensors/staging_buffer.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <sys/mman.h>

#include "base/error.h"

namespace lockstep {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{1} << 21;

}  // namespace

StagingBuffer::~StagingBuffer() { give_back(); }

void StagingBuffer::give_back() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
  mapping_ = begin_ = nullptr;
  num_bytes_ = 0;
}

void StagingBuffer::touch(int64_t num_bytes) {
  const std::span<char> bytes = take(num_bytes);
  // Writing makes the system find the pages now.
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

std::span<char> StagingBuffer::take(int64_t num_bytes) {
  if (num_bytes > num_bytes_) {
    give_back();
    // One huge page more, so that the start can be aligned.
    mapping_bytes_ = static_cast<size_t>(num_bytes) + kHugePage;
    void* memory =
        ::mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw Error(
          ExitCode::kIo, "memory",
          "no " + std::to_string(num_bytes) + " bytes to stage a save in: " + std::strerror(errno));
    mapping_ = static_cast<char*>(memory);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(mapping_);
    begin_ = mapping_ + ((kHugePage - begin % kHugePage) % kHugePage);
    num_bytes_ = num_bytes;
    (void)::madvise(begin_, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);  // best effort
  }
  return {begin_, static_cast<size_t>(num_bytes)};
}

}  // namespace lockstep
