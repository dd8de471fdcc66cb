#include "infer/sparse/arena.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/error.h"

namespace lockstep::infer {
namespace {

constexpr size_t kAlign = 64, kHugePage = size_t{2} << 20, kLeastChunk = size_t{32} << 20;

size_t rounded_up(size_t value, size_t by) { return (value + by - 1) / by * by; }

}  // namespace

struct Arena::Memory {
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (const auto& [begin, size] : chunks) ::munmap(begin, size);
  }

  /// Adds free memory of at least so many bytes.
  void grow(size_t num_bytes) {
    const size_t size = rounded_up(std::max(num_bytes, kLeastChunk), kHugePage) + kHugePage;
    void* const begin =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED)
      throw Error(ExitCode::kIo, "infer",
                  fmt::format("no memory for activations of {} bytes; set inferer.batch_size to "
                              "fewer samples",
                              num_bytes));
    chunks.emplace_back(begin, size);
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const size_t skipped = rounded_up(address, kHugePage) - address;
    auto* const first = static_cast<char*>(begin) + skipped;
    const size_t usable = (size - skipped) / kHugePage * kHugePage;
    ::madvise(first, usable, MADV_HUGEPAGE);  // best effort
    free[first] = usable;
  }

  char* take(size_t num_bytes) {
    const std::lock_guard lock(mutex);
    // The first that fits: memory that was used lately is still in the caches.
    const auto find = [&] {
      return std::ranges::find_if(free,
                                  [&](const auto& range) { return range.second >= num_bytes; });
    };
    auto found = find();
    if (found == free.end()) {
      grow(num_bytes);
      found = find();
    }
    const auto [begin, size] = *found;
    free.erase(found);
    if (size > num_bytes) free[begin + num_bytes] = size - num_bytes;
    return begin;
  }

  void give_back(char* begin, size_t num_bytes) {
    const std::lock_guard lock(mutex);
    auto range = free.emplace(begin, num_bytes).first;
    if (const auto next = std::next(range);
        next != free.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free.erase(next);
    }
    if (range == free.begin()) return;
    const auto before = std::prev(range);
    if (before->first + before->second != range->first) return;
    before->second += range->second;
    free.erase(range);
  }

  std::mutex mutex;
  std::map<char*, size_t> free;  // ranges by their begin, none next to another
  std::vector<std::pair<void*, size_t>> chunks;
};

Arena::Arena() : memory_(std::make_shared<Memory>()) {}

std::shared_ptr<void> Arena::take(int64_t num_bytes) {
  const size_t size = rounded_up(std::max<size_t>(1, static_cast<size_t>(num_bytes)), kAlign);
  char* const begin = memory_->take(size);
  return {begin, [memory = memory_, size](void* block) {
            memory->give_back(static_cast<char*>(block), size);
          }};
}

}  // namespace lockstep::infer
