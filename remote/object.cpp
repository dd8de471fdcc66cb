// Sequential reads profit from whole blocks. Random reads of small records would fetch 4 MiB each,
// so they fetch only their range.
#include "remote/object.h"

#include <algorithm>
#include <cstring>

namespace lockstep::remote {

bool Object::wants_blocks(int64_t offset, int64_t num_bytes) const {
  const int64_t from_last = offset - last_end_.exchange(offset + num_bytes);
  const bool goes_on = from_last >= 0 && from_last < kBlockBytes / 4;
  // A small object is fetched whole.
  return all_fit_ || goes_on || num_bytes >= kBlockBytes || facts_.num_bytes <= kBlockBytes / 16;
}

/// Returns the key of a block. It contains the tag, because a replaced object has other blocks.
BlockCache::Key Object::key_of(int64_t number) const {
  return {facts_.path + '\n' + facts_.tag, number};
}

BlockCache::Block Object::block_at(int64_t number) const {
  const int64_t begin = number * kBlockBytes;
  return cache_->get(key_of(number), [&] {
    return fetch_(begin, std::min(kBlockBytes, facts_.num_bytes - begin));
  });
}

// A block or range at a time; cached blocks are used even for random reads.
void Object::read_at(int64_t offset, std::span<char> bytes) const {
  const bool by_blocks = wants_blocks(offset, static_cast<int64_t>(bytes.size()));
  while (!bytes.empty()) {
    const int64_t number = offset / kBlockBytes, begin = offset - number * kBlockBytes;
    const auto count =
        static_cast<size_t>(std::min(static_cast<int64_t>(bytes.size()), kBlockBytes - begin));
    const BlockCache::Block block = by_blocks ? block_at(number) : cache_->find(key_of(number));
    if (block != nullptr)
      std::memcpy(bytes.data(), block->data() + begin, count);
    else
      std::memcpy(bytes.data(), fetch_(offset, static_cast<int64_t>(count)).data(), count);
    bytes = bytes.subspan(count);
    offset += static_cast<int64_t>(count);
  }
}

}  // namespace lockstep::remote
