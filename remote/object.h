#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/files/file_store.h"
#include "remote/block_cache.h"

namespace lockstep::remote {

/// One object, read by ranges through a cache of blocks. Where all objects that are known fit into
/// the cache, where a read goes on from the last one, and for all but small ranges, whole blocks
/// are fetched, ahead of what was asked for; else the range alone.
class Object final : public files::RemoteFile {
 public:
  static constexpr int64_t kBlockBytes = int64_t{4} << 20;

  /// Gives exactly these bytes of the object, or throws.
  using Fetch = std::function<std::string(int64_t offset, int64_t num_bytes)>;

  /// `all_fit`: whether blocks stay once they are read.
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
