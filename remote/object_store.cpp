// Stores with the S3 interface.
#include "remote/object_store.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/yaml/config_reader.h"
#include "remote/cached_object.h"
#include "remote/credentials.h"
#include "remote/http.h"
#include "remote/store_answers.h"

namespace lockstep::remote {

// ObjectStore: HEAD requests for facts, ListObjectsV2 for listings, GET with Range for content. PUT
// writes small objects, uploads in parts write large ones.

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
///
/// Conditions of writes use the ETag on stores with Amazon's interface, the generation on Google's.
class ObjectStore final : public files::WritableStore {
 public:
  ObjectStore(std::string scheme, std::function<Access()> find_access)
      : scheme_(std::move(scheme)), find_access_(std::move(find_access)) {}

  std::unique_ptr<files::RemoteFile> open(const std::string& path) override {
    const std::optional<files::FileFacts> facts = look_at(path);
    if (!facts) throw Error(ExitCode::kInputMissing, "remote", path + ": no such object or bucket");
    return cached_object(
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
                           header_of(answer, "etag"),
                           parse_time(header_of(answer, "last-modified"))};
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

  void forget(const std::string& beginning) override {
    const std::scoped_lock lock(mutex_);
    auto known = known_.lower_bound(beginning);
    while (known != known_.end() && known->first.starts_with(beginning)) {
      known_bytes_ -= known->second.num_bytes;
      known = known_.erase(known);
    }
  }

  std::optional<files::Versioned> read_now(const std::string& path) override {
    constexpr int64_t kMostBytes = int64_t{1} << 32;  // the record of a very large checkpoint
    Answer answer = ask(name_of(path), {}, kMostBytes, path);
    if (answer.status == 404) return std::nullopt;
    if (answer.status != 200) refuse(path, answer);
    return files::Versioned{std::move(answer.body), version_in(answer)};
  }

  std::string put(const std::string& path, std::string_view bytes,
                  const std::optional<std::string>& replaced) override {
    Request request{.method = "PUT", .body = {bytes}};
    if (replaced) add_condition(*replaced, &request.headers);
    add_checksum(crc32c(bytes), &request.headers);
    const Answer answer = ask(name_of(path), request, kMaxTextBytes, path);
    forget(path);
    if (answer.status == 200) return version_in(answer);
    // 404: the object that should be replaced is gone.
    if (answer.status != 412 && !(answer.status == 404 && replaced && !replaced->empty()))
      refuse(path, answer);
    // The store may have taken an earlier try whose answer was lost.
    if (const auto now = read_now(path); now && now->bytes == bytes) return now->version;
    throw files::WriteConflict(ExitCode::kIo, "remote",
                               path + ": another program has written it meanwhile");
  }

  void remove(const std::string& path) override {
    const Answer answer = ask(name_of(path), {.method = "DELETE"}, kMaxTextBytes, path);
    forget(path);
    if (answer.status != 204 && answer.status != 200 && answer.status != 404) refuse(path, answer);
  }

  files::Upload begin_upload(const std::string& path) override {
    Request request{.method = "POST", .query = {{"uploads", ""}}};
    if (!is_google()) request.headers["x-amz-checksum-algorithm"] = "CRC32C";
    const Answer answer = ask(name_of(path), request, kMaxTextBytes, path);
    if (answer.status != 200) refuse(path, answer);
    return {.path = path, .id = parse_upload_id(answer.body, path)};
  }

  files::SentPart send_part(const files::Upload& upload, int64_t number,
                            std::span<const std::string_view> bytes) override {
    Request request{.method = "PUT",
                    .query = {{"partNumber", fmt::format("{}", number)}, {"uploadId", upload.id}},
                    .body = {bytes.begin(), bytes.end()}};
    uint32_t crc = 0;
    for (const std::string_view text : bytes) crc = crc32c(text, crc);
    add_checksum(crc, &request.headers);
    const Answer answer = ask(name_of(upload.path), request, kMaxTextBytes, upload.path);
    if (answer.status != 200) refuse(upload.path, answer);
    const std::string tag = header_of(answer, "etag");
    if (tag.empty())
      throw Error(ExitCode::kIo, "remote", upload.path + ": the store does not tag a part (ETag)");
    return {.tag = tag, .crc32c = crc};
  }

  bool complete(const files::Upload& upload, std::span<const files::SentPart> parts) override {
    const std::string text = completion_text(parts, !is_google());
    const Request request{.method = "POST", .query = {{"uploadId", upload.id}}, .body = {text}};
    const Answer answer = ask(name_of(upload.path), request, kMaxTextBytes, upload.path);
    forget(upload.path);
    // A store may begin its answer before the work, so 200 with an error inside is a fault too.
    const StoreFault fault = parse_fault(answer.body);
    if (answer.status == 404 && fault.code != "NoSuchBucket") return false;
    if (answer.status != 200 || !fault.code.empty()) refuse(upload.path, answer);
    return true;
  }

  void abort(const files::Upload& upload) override {
    const Request request{.method = "DELETE", .query = {{"uploadId", upload.id}}};
    const Answer answer = ask(name_of(upload.path), request, kMaxTextBytes, upload.path);
    if (answer.status != 204 && answer.status != 200 && answer.status != 404)
      refuse(upload.path, answer);
  }

  std::vector<files::Upload> uploads(const std::string& beginning) override {
    const Name name = name_of(beginning);
    Request request{.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", name.key}}};
    std::vector<files::Upload> all;
    while (true) {
      const Answer answer = ask({name.bucket, ""}, request, kMaxTextBytes, beginning);
      if (answer.status != 200) refuse(beginning, answer);
      UploadsPage page = parse_uploads(answer.body, beginning);
      for (files::Upload& upload : page.uploads) {
        upload.path = fmt::format("{}://{}/{}", scheme_, name.bucket, upload.path);
        if (upload.path.starts_with(beginning)) all.push_back(std::move(upload));
      }
      if (page.next_key.empty()) break;
      request.query["key-marker"] = page.next_key;
      request.query["upload-id-marker"] = page.next_id;
    }
    return all;
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

  /// Returns the credentials. Those that are about to expire are determined again.
  std::shared_ptr<const Access> access() {
    constexpr std::time_t kEarlyS = 60;  // longer than one request should take
    const std::scoped_lock lock(mutex_);
    const std::time_t expires_s = access_ == nullptr ? 0 : access_->credentials.expires_s;
    if (access_ == nullptr || (expires_s > 0 && expires_s - kEarlyS <= std::time(nullptr)))
      access_ = std::make_shared<const Access>(find_access_());
    return access_;
  }

  bool is_google() { return access()->is_google; }

  /// Requires of a write that the present object has this version; empty: that there is none.
  void add_condition(const std::string& version, Headers* headers) {
    if (is_google())
      (*headers)["x-goog-if-generation-match"] = version.empty() ? "0" : version;
    else if (version.empty())
      (*headers)["if-none-match"] = "*";
    else
      (*headers)["if-match"] = version;
  }

  /// Returns the version for add_condition().
  std::string version_in(const Answer& answer) {
    return header_of(answer, is_google() ? "x-goog-generation" : "etag");
  }

  /// Lets the store compare what arrives.
  void add_checksum(uint32_t crc, Headers* headers) {
    if (is_google())
      (*headers)["x-goog-hash"] = "crc32c=" + crc32c_text(crc);
    else
      (*headers)["x-amz-checksum-crc32c"] = crc32c_text(crc);
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
    if (cache_ == nullptr) cache_ = make_block_cache(files::store_limits().cache_bytes);
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
    for (auto& [scheme, store] : make_stores()) {
      added.push_back(static_cast<ObjectStore*>(store.get()));
      files::add_store(scheme, std::move(store));
    }
    return added;
  }();
  return all;
}

/// Reset between the jobs of a process.
const ProcessState objects_of_run("objects of stores", forget_stores);

}  // namespace

std::vector<std::pair<std::string, std::unique_ptr<files::FileStore>>> make_stores() {
  std::vector<std::pair<std::string, std::unique_ptr<files::FileStore>>> made;
  made.emplace_back("s3", std::make_unique<ObjectStore>("s3", amazon_access));
  made.emplace_back("gs", std::make_unique<ObjectStore>("gs", google_access));
  return made;
}

void add_stores() { (void)stores(); }

void forget_stores() {
  for (ObjectStore* const store : stores()) store->forget();
}

}  // namespace lockstep::remote
