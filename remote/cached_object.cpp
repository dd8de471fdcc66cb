#include "remote/cached_object.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep::remote {

// BlockCache has two kinds of locks. The cache's mutex guards the table and is held briefly. A
// slot's mutex is held during its fetch. So slow fetches of different blocks run in parallel.

class BlockCache {
 public:
  using Block = std::shared_ptr<const std::string>;
  using Key = std::pair<std::string, int64_t>;  ///< object with its tag, and block number

  /// Blocks that readers still hold are not counted in `max_bytes`.
  explicit BlockCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Returns the block, fetched by `fetch` if it is missing. An exception of `fetch` is passed on,
  /// and the next caller tries again.
  Block get(const Key& key, const std::function<std::string()>& fetch) {
    // The cache's mutex is not held here, so other blocks can be read meanwhile.
    const std::shared_ptr<Slot> slot = slot_of(key);
    const std::scoped_lock lock(slot->mutex);
    if (slot->block == nullptr) {
      slot->block = std::make_shared<const std::string>(fetch());
      note(key, slot, static_cast<int64_t>(slot->block->size()));
    }
    return slot->block;
  }

  /// Returns the block; null if it is missing.
  Block find(const Key& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = entries_.find(key);
    // num_bytes 0: being fetched. This call must not wait for that.
    if (found == entries_.end() || found->second.num_bytes == 0) return nullptr;
    order_.splice(order_.begin(), order_, found->second.place);
    return found->second.slot->block;
  }

 private:
  struct Slot {
    std::mutex mutex;  ///< held during the fetch
    Block block;
  };
  struct Entry {
    std::shared_ptr<Slot> slot;
    std::list<Key>::iterator place;
    int64_t num_bytes = 0;
  };

  std::shared_ptr<Slot> slot_of(const Key& key) {
    const std::scoped_lock lock(mutex_);
    const auto [found, is_new] = entries_.try_emplace(key);
    if (is_new)
      found->second = {std::make_shared<Slot>(), order_.insert(order_.begin(), key)};
    else
      order_.splice(order_.begin(), order_, found->second.place);
    return found->second.slot;
  }

  void note(const Key& key, const std::shared_ptr<Slot>& slot, int64_t num_bytes) {
    const std::scoped_lock lock(mutex_);
    const auto noted = entries_.find(key);
    if (noted == entries_.end() || noted->second.slot != slot) return;  // evicted meanwhile
    noted->second.num_bytes = num_bytes;
    num_bytes_ += num_bytes;
    // Evicts the least recently used blocks.
    while (num_bytes_ > max_bytes_ && !order_.empty()) {
      const auto oldest = entries_.find(order_.back());
      num_bytes_ -= oldest->second.num_bytes;
      entries_.erase(oldest);
      order_.pop_back();
    }
  }

  const int64_t max_bytes_;
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
  std::list<Key> order_;  // most recently used first
  int64_t num_bytes_ = 0;
};

namespace {

class Object final : public files::RemoteFile {
 public:
  Object(files::FileFacts facts, FetchRange fetch, bool all_fit, std::shared_ptr<BlockCache> cache)
      : facts_(std::move(facts)),
        fetch_(std::move(fetch)),
        all_fit_(all_fit),
        cache_(std::move(cache)) {}

  int64_t num_bytes() const override { return facts_.num_bytes; }
  // A block or range at a time; cached blocks are used even for random reads.
  void read_at(int64_t offset, std::span<char> bytes) const override {
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

 private:
  // Sequential reads profit from whole blocks. Random reads of small records would fetch 4 MiB
  // each, so they fetch only their range.
  bool wants_blocks(int64_t offset, int64_t num_bytes) const {
    const int64_t from_last = offset - last_end_.exchange(offset + num_bytes);
    const bool goes_on = from_last >= 0 && from_last < kBlockBytes / 4;
    // A small object is fetched whole.
    return all_fit_ || goes_on || num_bytes >= kBlockBytes / 2 ||
           facts_.num_bytes <= kBlockBytes / 16;
  }

  /// Returns the key of a block. It contains the tag, because a replaced object has other blocks.
  BlockCache::Key key_of(int64_t number) const { return {facts_.path + '\n' + facts_.tag, number}; }

  BlockCache::Block block_at(int64_t number) const {
    const int64_t begin = number * kBlockBytes;
    return cache_->get(key_of(number), [&] {
      return fetch_(begin, std::min(kBlockBytes, facts_.num_bytes - begin));
    });
  }

  files::FileFacts facts_;
  FetchRange fetch_;
  bool all_fit_;
  std::shared_ptr<BlockCache> cache_;
  mutable std::atomic<int64_t> last_end_{0};
};

}  // namespace

std::shared_ptr<BlockCache> make_block_cache(int64_t max_bytes) {
  return std::make_shared<BlockCache>(max_bytes);
}

std::unique_ptr<files::RemoteFile> cached_object(files::FileFacts facts, FetchRange fetch,
                                                 bool all_fit, std::shared_ptr<BlockCache> cache) {
  return std::make_unique<Object>(std::move(facts), std::move(fetch), all_fit, std::move(cache));
}

}  // namespace lockstep::remote
