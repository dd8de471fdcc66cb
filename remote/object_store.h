#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/files.h"
#include "remote/credentials.h"
#include "remote/http.h"

/// Stores with the S3 interface, for s3:// and gs://, and their cache of blocks.
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

/// Page of a ListObjectsV2 answer.
struct ListingPage {
  std::vector<files::FileFacts> objects;  ///< `path` is the key
  std::string next_token;                 ///< of the next page; empty: none
};

/// Parses a page. Throws Error(kIo) with `place` if the text is not a valid one.
ListingPage parse_listing(std::string_view xml, const std::string& place);

/// Error that a store returns for a refused request.
struct StoreFault {
  std::string code, message;  ///< empty if the text is not such XML
};
StoreFault parse_fault(std::string_view xml);

/// Store of buckets with the S3 interface: SCHEME://bucket/key. Credentials are determined when
/// first needed, and again when access is denied, because temporary keys expire. Until forget(), an
/// object is read with the tag (If-Match) of its first look. So a replaced object is never mixed
/// with the old one.
class ObjectStore final : public files::FileStore {
 public:
  ObjectStore(std::string scheme, std::function<Access()> find_access)
      : scheme_(std::move(scheme)), find_access_(std::move(find_access)) {}

  std::unique_ptr<files::RemoteFile> open(const std::string& path) override;
  std::optional<files::FileFacts> look_at(const std::string& path) override;
  std::vector<files::FileFacts> list(const std::string& beginning) override;
  void learn(const files::FileFacts& facts) override;

  /// Clears facts, cached content and keys, so that they are requested again. Open files keep what
  /// they have.
  void forget();

 private:
  struct Name {
    std::string bucket, key;
  };
  Name name_of(const std::string& path) const;
  std::shared_ptr<const Access> access();
  /// Returns the credentials that are valid now instead of `denied`; null if they are unchanged.
  std::shared_ptr<const Access> access_after(const std::shared_ptr<const Access>& denied);
  std::shared_ptr<BlockCache> cache();
  bool all_fit();
  /// Sends `request` (method, query, headers) for the object.
  Answer ask(const Name& name, const Request& request, int64_t max_body_bytes,
             const std::string& place);
  std::string read_range(const files::FileFacts& facts, int64_t offset, int64_t num_bytes);
  [[noreturn]] void refuse(const std::string& path, const Answer& answer);

  const std::string scheme_;
  const std::function<Access()> find_access_;
  std::mutex mutex_;
  std::shared_ptr<const Access> access_;
  std::shared_ptr<BlockCache> cache_;
  std::map<std::string, files::FileFacts> known_;  // by path
  int64_t known_bytes_ = 0;
};

/// Adds the schemes s3:// and gs:// to base/files/files.h, once. A reader of run files must
/// call it first.
void add_stores();

/// Clears facts, cached content and keys of all stores. So the next job of a process reads the
/// present content. No thread may be reading from a store.
void forget_stores();

}  // namespace lockstep::remote
