// There are two kinds of locks. The cache's mutex guards the table and is held briefly. A slot's
// mutex is held during its fetch. So slow fetches of different blocks run in parallel.
#include "remote/block_cache.h"

namespace lockstep::remote {

BlockCache::Block BlockCache::get(const Key& key, const std::function<std::string()>& fetch) {
  // The cache's mutex is not held here, so other blocks can be read meanwhile.
  const std::shared_ptr<Slot> slot = slot_of(key);
  const std::scoped_lock lock(slot->mutex);
  if (slot->block == nullptr) {
    slot->block = std::make_shared<const std::string>(fetch());
    note(key, slot, static_cast<int64_t>(slot->block->size()));
  }
  return slot->block;
}

BlockCache::Block BlockCache::find(const Key& key) {
  const std::scoped_lock lock(mutex_);
  const auto found = entries_.find(key);
  // num_bytes 0: being fetched. This call must not wait for that.
  if (found == entries_.end() || found->second.num_bytes == 0) return nullptr;
  order_.splice(order_.begin(), order_, found->second.place);
  return found->second.slot->block;
}

std::shared_ptr<BlockCache::Slot> BlockCache::slot_of(const Key& key) {
  const std::scoped_lock lock(mutex_);
  const auto [found, is_new] = entries_.try_emplace(key);
  if (is_new)
    found->second = {std::make_shared<Slot>(), order_.insert(order_.begin(), key)};
  else
    order_.splice(order_.begin(), order_, found->second.place);
  return found->second.slot;
}

void BlockCache::note(const Key& key, const std::shared_ptr<Slot>& slot, int64_t num_bytes) {
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

}  // namespace lockstep::remote
