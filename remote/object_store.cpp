// Stores with the S3 interface, and their cache of blocks.
#include "remote/object_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <curl/curl.h>
#include <expat.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/yaml/config_reader.h"
#include "remote/credentials.h"
#include "remote/http.h"

namespace lockstep::remote {

// BlockCache has two kinds of locks. The cache's mutex guards the table and is held briefly. A
// slot's mutex is held during its fetch. So slow fetches of different blocks run in parallel.

namespace {

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
    return all_fit_ || goes_on || num_bytes >= kBlockBytes || facts_.num_bytes <= kBlockBytes / 16;
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
  Fetch fetch_;
  bool all_fit_;
  std::shared_ptr<BlockCache> cache_;
  mutable std::atomic<int64_t> last_end_{0};
};

}  // namespace

// Parsers for the XML answers of a store, by expat.

namespace {

/// Walker over XML. Calls `on_element` at the end of each element with its path from the root
/// ("Error/Code") and its own text.
class XmlWalk {
 public:
  using OnElement = std::function<void(const std::string& path, const std::string& text)>;

  explicit XmlWalk(OnElement on_element)
      : on_element_(std::move(on_element)), parser_(::XML_ParserCreate(nullptr)) {
    ::XML_SetUserData(parser_.get(), this);
    ::XML_SetElementHandler(parser_.get(), &XmlWalk::begin, &XmlWalk::end);
    ::XML_SetCharacterDataHandler(parser_.get(), &XmlWalk::take);
  }

  /// Parses a text; false if it is not well-formed.
  bool parse(std::string_view xml) {
    return ::XML_Parse(parser_.get(), xml.data(), static_cast<int>(xml.size()), 1) == XML_STATUS_OK;
  }

 private:
  static void begin(void* self, const XML_Char* name, const XML_Char** /*attributes*/) {
    auto* const walk = static_cast<XmlWalk*>(self);
    walk->path_ += (walk->path_.empty() ? "" : "/") + std::string(name);
    walk->text_.clear();
  }
  static void take(void* self, const XML_Char* text, int num_bytes) {
    static_cast<XmlWalk*>(self)->text_.append(text, static_cast<size_t>(num_bytes));
  }
  static void end(void* self, const XML_Char* /*name*/) {
    auto* const walk = static_cast<XmlWalk*>(self);
    walk->on_element_(walk->path_, walk->text_);
    const size_t slash = walk->path_.rfind('/');
    walk->path_.resize(slash == std::string::npos ? 0 : slash);
    walk->text_.clear();
  }

  struct Free {
    void operator()(XML_ParserStruct* parser) const { ::XML_ParserFree(parser); }
  };

  OnElement on_element_;
  std::unique_ptr<XML_ParserStruct, Free> parser_;
  std::string path_, text_;
};

/// Decodes a key of "encoding-type=url", where a plus sign is a space as in a form.
std::string decoded(std::string key) {
  std::replace(key.begin(), key.end(), '+', ' ');
  int num_bytes = 0;
  char* const text =
      ::curl_easy_unescape(nullptr, key.data(), static_cast<int>(key.size()), &num_bytes);
  if (text == nullptr) throw std::bad_alloc();
  key.assign(text, static_cast<size_t>(num_bytes));
  ::curl_free(text);
  return key;
}

}  // namespace

ListingPage parse_listing(std::string_view xml, const std::string& place) {
  ListingPage page;
  files::FileFacts object;
  bool has_root = false, has_more = false, has_sizes = true, is_encoded = false;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "ListBucketResult/Contents/Key") object.path = text;
    if (path == "ListBucketResult/Contents/ETag") object.tag = text;
    if (path == "ListBucketResult/Contents/Size")
      object.num_bytes = parse_integer(text).value_or(-1);
    if (path == "ListBucketResult/Contents") {
      has_sizes = has_sizes && object.num_bytes >= 0 && !object.path.empty();
      page.objects.push_back(std::exchange(object, {}));
    }
    if (path == "ListBucketResult/EncodingType") is_encoded = text == "url";
    if (path == "ListBucketResult/IsTruncated") has_more = text == "true";
    if (path == "ListBucketResult/NextContinuationToken") page.next_token = text;
    if (path == "ListBucketResult") has_root = true;
  });
  if (!walk.parse(xml) || !has_root || !has_sizes || (has_more && page.next_token.empty()))
    throw Error(ExitCode::kIo, "remote",
                place +
                    ": the store's answer is not a listing (ListObjectsV2); check that its address "
                    "is an S3 endpoint");
  if (!has_more) page.next_token.clear();
  // Decoded at the end, since EncodingType may follow the keys.
  for (files::FileFacts& found : page.objects)
    if (is_encoded) found.path = decoded(std::move(found.path));
  return page;
}

StoreFault parse_fault(std::string_view xml) {
  StoreFault fault;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "Error/Code") fault.code = text;
    if (path == "Error/Message") fault.message = text;
  });
  return walk.parse(xml) ? fault : StoreFault{};
}

// ObjectStore: HEAD requests for facts, ListObjectsV2 for listings, GET with Range for content.

namespace {

constexpr int64_t kMaxTextBytes = int64_t{64} << 20;  // of a listing's page or an error's text

/// True if the bucket may be part of the host name, as covered by the certificate.
bool fits_host_name(const std::string& bucket) {
  return bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

/// Returns a response header; empty if it is missing.
std::string header_of(const Answer& answer, const std::string& name) {
  const auto found = answer.headers.find(name);
  return found == answer.headers.end() ? "" : found->second;
}

/// Returns the store's error for a message.
std::string said(const StoreFault& fault, int64_t status) {
  return fault.code.empty() ? fmt::format("status {}", status)
                            : fmt::format("{}: {}", fault.code, fault.message);
}

/// Returns the request with an object's address.
Request addressed(Request request, const Access& access, const std::string& bucket,
                  const std::string& key) {
  if (!access.endpoint.empty()) {
    const size_t path = access.endpoint.find('/', access.endpoint.find("://") + 3);
    request.origin = access.endpoint.substr(0, path);
    const std::string base = path == std::string::npos ? "" : access.endpoint.substr(path);
    request.path = base + "/" + bucket + "/" + key;
  } else if (fits_host_name(bucket)) {
    request.origin = fmt::format("https://{}.s3.{}.amazonaws.com", bucket, access.region);
    request.path = "/" + key;
  } else {
    request.origin = fmt::format("https://s3.{}.amazonaws.com", access.region);
    request.path = "/" + bucket + "/" + key;
  }
  return request;
}

/// Throws the error for an object that was replaced since it was opened.
[[noreturn]] void refuse_changed(const std::string& path) {
  throw files::FileChanged(ExitCode::kBadData, "remote",
                           path +
                               ": the object was replaced after it was opened; write new content "
                               "under a new name, and start again");
}

/// Store of buckets with the S3 interface: SCHEME://bucket/key. Credentials are determined when
/// first needed, and again when access is denied, because temporary keys expire. Until forget(), an
/// object is read with the tag (If-Match) of its first look. So a replaced object is never mixed
/// with the old one.
class ObjectStore final : public files::FileStore {
 public:
  ObjectStore(std::string scheme, std::function<Access()> find_access)
      : scheme_(std::move(scheme)), find_access_(std::move(find_access)) {}

  std::unique_ptr<files::RemoteFile> open(const std::string& path) override {
    const std::optional<files::FileFacts> facts = look_at(path);
    if (!facts) throw Error(ExitCode::kInputMissing, "remote", path + ": no such object or bucket");
    return std::make_unique<Object>(
        *facts,
        [this, facts = *facts](int64_t offset, int64_t num_bytes) {
          return read_range(facts, offset, num_bytes);
        },
        all_fit(), cache());
  }

  std::optional<files::FileFacts> look_at(const std::string& path) override {
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = known_.find(path); found != known_.end()) return found->second;
    }
    const Name name = name_of(path);
    if (name.key.empty()) return std::nullopt;
    const Answer answer = ask(name, {.method = "HEAD"}, kMaxTextBytes, path);
    if (answer.status == 404) return std::nullopt;
    if (answer.status != 200) refuse(path, answer);
    files::FileFacts facts{path, parse_integer(header_of(answer, "content-length")).value_or(-1),
                           header_of(answer, "etag")};
    if (facts.num_bytes < 0)
      throw Error(ExitCode::kIo, "remote", path + ": the store does not return the object's size");
    learn(facts);
    return facts;
  }

  std::vector<files::FileFacts> list(const std::string& beginning) override {
    const Name name = name_of(beginning);
    // URL-encoded, because XML cannot represent every character of a key.
    Request request{.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", name.key}}};
    std::vector<files::FileFacts> all;
    while (true) {
      const Answer answer = ask({name.bucket, ""}, request, kMaxTextBytes, beginning);
      if (answer.status != 200) refuse(beginning, answer);
      ListingPage page = parse_listing(answer.body, beginning);
      for (files::FileFacts& facts : page.objects) {
        if (facts.path.ends_with('/')) continue;  // marker for a folder, made by some tools
        facts.path = fmt::format("{}://{}/{}", scheme_, name.bucket, facts.path);
        learn(facts);
        all.push_back(std::move(facts));
      }
      if (page.next_token.empty()) break;
      request.query["continuation-token"] = page.next_token;
    }
    std::ranges::sort(all, {}, &files::FileFacts::path);
    return all;
  }

  void learn(const files::FileFacts& facts) override {
    const std::scoped_lock lock(mutex_);
    if (known_.emplace(facts.path, facts).second) known_bytes_ += facts.num_bytes;
  }

  /// Clears facts, cached content and keys, so that they are requested again. Open files keep what
  /// they have.
  void forget() {
    const std::scoped_lock lock(mutex_);
    access_.reset();
    cache_.reset();
    known_.clear();
    known_bytes_ = 0;
  }

 private:
  struct Name {
    std::string bucket, key;
  };
  Name name_of(const std::string& path) const {
    const size_t begin = scheme_.size() + 3, slash = path.find('/', begin);
    Name name{path.substr(begin, slash - begin),
              slash == std::string::npos ? "" : path.substr(slash + 1)};
    if (name.bucket.empty() || name.bucket.find_first_of("*?[ ") != std::string::npos)
      throw Error(ExitCode::kConfig, "remote",
                  fmt::format("{}: no bucket; write {}://BUCKET/KEY", path, scheme_));
    return name;
  }

  std::shared_ptr<const Access> access() {
    const std::scoped_lock lock(mutex_);
    if (access_ == nullptr) access_ = std::make_shared<const Access>(find_access_());
    return access_;
  }

  /// Returns the credentials that are valid now instead of `denied`; null if they are unchanged.
  std::shared_ptr<const Access> access_after(const std::shared_ptr<const Access>& denied) {
    const std::scoped_lock lock(mutex_);
    if (access_ != denied) return access_;  // another thread has renewed it already
    auto now = std::make_shared<const Access>(find_access_());
    if (now->credentials == denied->credentials) return nullptr;
    log::info("remote",
              fmt::format("{}: the key of {} was denied and has been replaced; reading it again",
                          scheme_, now->credentials.source));
    return access_ = std::move(now);
  }

  std::shared_ptr<BlockCache> cache() {
    const std::scoped_lock lock(mutex_);
    if (cache_ == nullptr) cache_ = std::make_shared<BlockCache>(files::store_limits().cache_bytes);
    return cache_;
  }

  bool all_fit() {
    const std::scoped_lock lock(mutex_);
    return known_bytes_ <= files::store_limits().cache_bytes;
  }

  /// Sends `request` (method, query, headers) for the object.
  Answer ask(const Name& name, const Request& request, int64_t max_body_bytes,
             const std::string& place) {
    // A snapshot of the credentials: another thread may renew them meanwhile.
    const std::shared_ptr<const Access> from = access();
    Answer answer =
        send(*from, addressed(request, *from, name.bucket, name.key), max_body_bytes, place);
    // An expired key gives 400 (ExpiredToken). The answer to a HEAD has no reason.
    if (answer.status != 400 && answer.status != 401 && answer.status != 403) return answer;
    const std::shared_ptr<const Access> renewed = access_after(from);
    if (renewed == nullptr) return answer;
    return send(*renewed, addressed(request, *renewed, name.bucket, name.key), max_body_bytes,
                place);
  }

  std::string read_range(const files::FileFacts& facts, int64_t offset, int64_t num_bytes) {
    if (num_bytes == 0) return "";
    Request request;
    const int64_t last = offset + num_bytes - 1;
    request.headers["range"] = fmt::format("bytes={}-{}", offset, last);
    if (!facts.tag.empty()) request.headers["if-match"] = facts.tag;
    Answer answer =
        ask(name_of(facts.path), request, std::max(num_bytes, int64_t{1} << 16), facts.path);
    // A server may answer a range over the whole object with 200.
    const bool is_whole = offset == 0 && num_bytes == facts.num_bytes;
    if (answer.status != 206 && !(answer.status == 200 && is_whole)) {
      if (answer.status == 200)
        throw Error(ExitCode::kIo, "remote",
                    facts.path + ": the store does not support range requests (Range)");
      refuse(facts.path, answer);
    }
    const std::string expected = fmt::format("bytes {}-{}/{}", offset, last, facts.num_bytes);
    const std::string given = header_of(answer, "content-range");
    if (answer.status == 206 && given != expected) {
      if (given.substr(0, given.find('/')) == expected.substr(0, expected.find('/')))
        refuse_changed(facts.path);
      throw Error(
          ExitCode::kIo, "remote",
          fmt::format("{}: requested '{}', the store returned '{}'", facts.path, expected, given));
    }
    // A store that ignores If-Match is caught by its tag.
    if (const std::string tag = header_of(answer, "etag"); !facts.tag.empty() && tag != facts.tag)
      refuse_changed(facts.path);
    if (static_cast<int64_t>(answer.body.size()) != num_bytes)
      throw Error(ExitCode::kIo, "remote",
                  fmt::format("{}: requested {} bytes from {}, the store returned {}", facts.path,
                              num_bytes, offset, answer.body.size()));
    return std::move(answer.body);
  }

  [[noreturn]] void refuse(const std::string& path, const Answer& answer) {
    const StoreFault fault = parse_fault(answer.body);
    const std::shared_ptr<const Access> from = access();
    const Credentials& used = from->credentials;
    const std::string text = said(fault, answer.status);
    const std::string region = header_of(answer, "x-amz-bucket-region");
    // Buckets belong to a region; the store names the right one.
    if (!region.empty() && region != from->region)
      throw Error(ExitCode::kConfig, "remote",
                  fmt::format("{}: the bucket is in {}, not in {}: set AWS_REGION ({})", path,
                              region, from->region, text));
    if (answer.status == 401 || answer.status == 403)
      throw files::NoPermission(
          ExitCode::kInputMissing, "remote",
          fmt::format("{}: access is denied {} ({}); grant it, or set {}", path,
                      used.source.empty() ? "without a key (none was found)"
                                          : "to the key of " + used.source,
                      text, from->hint));
    if (answer.status == 404)
      throw Error(ExitCode::kInputMissing, "remote",
                  fmt::format("{}: {}", path,
                              fault.code == "NoSuchBucket" ? "no such bucket" : "no such object"));
    // 412: the tag no longer matches. 416: the object has become shorter.
    if (answer.status == 412 || answer.status == 416) refuse_changed(path);
    throw Error(ExitCode::kIo, "remote", fmt::format("{}: refused by the store: {}", path, text));
  }

  const std::string scheme_;
  const std::function<Access()> find_access_;
  std::mutex mutex_;
  std::shared_ptr<const Access> access_;
  std::shared_ptr<BlockCache> cache_;
  std::map<std::string, files::FileFacts> known_;  // by path
  int64_t known_bytes_ = 0;
};

/// Returns the stores of this process, which base/files owns.
const std::vector<ObjectStore*>& stores() {
  static const std::vector<ObjectStore*> all = [] {
    std::vector<ObjectStore*> added;
    const auto add = [&](const std::string& scheme, const std::function<Access()>& access) {
      auto store = std::make_unique<ObjectStore>(scheme, access);
      added.push_back(store.get());
      files::add_store(scheme, std::move(store));
    };
    add("s3", amazon_access);
    add("gs", google_access);
    return added;
  }();
  return all;
}

/// Reset between the jobs of a process.
const ProcessState objects_of_run("objects of stores", forget_stores);

}  // namespace

void add_stores() { (void)stores(); }

void forget_stores() {
  for (ObjectStore* const store : stores()) store->forget();
}

}  // namespace lockstep::remote
