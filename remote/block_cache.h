#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace lockstep::remote {

/// Cache of the object blocks read last, up to a number of bytes. A block that several threads
/// request at once is fetched once. Thread-safe.
class BlockCache {
 public:
  using Block = std::shared_ptr<const std::string>;
  using Key = std::pair<std::string, int64_t>;  ///< object with its tag, and block number

  /// Blocks that readers still hold are not counted in `max_bytes`.
  explicit BlockCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// Returns the block, fetched by `fetch` if it is missing. An exception of `fetch` is passed on,
  /// and the next caller tries again.
  Block get(const Key& key, const std::function<std::string()>& fetch);
  /// Returns the block; null if it is missing.
  Block find(const Key& key);

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

  std::shared_ptr<Slot> slot_of(const Key& key);
  void note(const Key& key, const std::shared_ptr<Slot>& slot, int64_t num_bytes);

  const int64_t max_bytes_;
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
  std::list<Key> order_;  // most recently used first
  int64_t num_bytes_ = 0;
};

}  // namespace lockstep::remote
