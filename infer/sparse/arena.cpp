#include "infer/sparse/arena.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "base/tensors/tensor_memory.h"

namespace lockstep::infer {
namespace {

constexpr size_t kAlign = 64, kLeastChunk = size_t{32} << 20;

}  // namespace

struct Arena::Memory {
  /// Adds free memory of at least so many bytes.
  void grow(size_t num_bytes) {
    const size_t size = std::max(num_bytes, kLeastChunk);
    chunks.push_back(empty_on_large_pages(static_cast<int64_t>(size), at::kByte));
    free[static_cast<char*>(chunks.back().mutable_data_ptr())] = size;
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
  std::vector<at::Tensor> chunks;
};

Arena::Arena() : memory_(std::make_shared<Memory>()) {}

std::shared_ptr<void> Arena::take(int64_t num_bytes) {
  const size_t size = (static_cast<size_t>(num_bytes) / kAlign + 1) * kAlign;
  char* const begin = memory_->take(size);
  return {begin, [memory = memory_, size](void* block) {
            memory->give_back(static_cast<char*>(block), size);
          }};
}

}  // namespace lockstep::infer
