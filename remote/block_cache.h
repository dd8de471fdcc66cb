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

/// Pieces of objects that were read last, up to a number of bytes; one that several threads want at
/// once is fetched once. Any thread may call.
class BlockCache {
 public:
  using Block = std::shared_ptr<const std::string>;
  using Key =
      std::pair<std::string, int64_t>;  ///< the object, with its tag, and the piece's number

  /// Memory beyond `max_bytes`: the blocks that readers hold.
  explicit BlockCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  /// The block, by `fetch` if it is not here; what that throws is thrown on, and the next caller
  /// tries again.
  Block get(const Key& key, const std::function<std::string()>& fetch);
  /// Null if it is not here.
  Block find(const Key& key);

 private:
  struct Slot {
    std::mutex mutex;  ///< held while it is fetched
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
  std::list<Key> order_;  // the one used last stands in front
  int64_t num_bytes_ = 0;
};

}  // namespace lockstep::remote
