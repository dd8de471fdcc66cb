#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/files/file_store.h"
#include "remote/block_cache.h"

namespace lockstep::remote {

/// Object that is read by ranges through a cache of blocks. Whole blocks are fetched if all known
/// objects fit into the cache, or a read continues the last one. They are fetched too for ranges of
/// at least a block and for small objects. Otherwise only the range is fetched.
class Object final : public files::RemoteFile {
 public:
  static constexpr int64_t kBlockBytes = int64_t{4} << 20;

  /// Function that returns exactly these bytes of the object, or throws.
  using Fetch = std::function<std::string(int64_t offset, int64_t num_bytes)>;

  /// `all_fit`: true if blocks remain in the cache once they are read.
  Object(files::FileFacts facts, Fetch fetch, bool all_fit, std::shared_ptr<BlockCache> cache)
      : facts_(std::move(facts)),
        fetch_(std::move(fetch)),
        all_fit_(all_fit),
        cache_(std::move(cache)) {}

  int64_t num_bytes() const override { return facts_.num_bytes; }
  void read_at(int64_t offset, std::span<char> bytes) const override;

 private:
  bool wants_blocks(int64_t offset, int64_t num_bytes) const;
  BlockCache::Key key_of(int64_t number) const;
  BlockCache::Block block_at(int64_t number) const;

  files::FileFacts facts_;
  Fetch fetch_;
  bool all_fit_;
  std::shared_ptr<BlockCache> cache_;
  mutable std::atomic<int64_t> last_end_{0};
};

}  // namespace lockstep::remote
