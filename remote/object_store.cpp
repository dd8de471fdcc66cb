// Requests of the S3 API: HEAD for facts, ListObjectsV2 for listings, GET with Range for content.
#include "remote/object_store.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/yaml/config_reader.h"
#include "remote/object.h"
#include "remote/store_answers.h"

namespace lockstep::remote {
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
  throw files::FileChanged(
      ExitCode::kBadData, "remote",
      path +
          ": the object is not the one that it was when it was opened: it was replaced; "
          "write new content under a new name, and start again");
}

}  // namespace

ObjectStore::Name ObjectStore::name_of(const std::string& path) const {
  const size_t begin = scheme_.size() + 3, slash = path.find('/', begin);
  Name name{path.substr(begin, slash - begin),
            slash == std::string::npos ? "" : path.substr(slash + 1)};
  if (name.bucket.empty() || name.bucket.find_first_of("*?[ ") != std::string::npos)
    throw Error(ExitCode::kConfig, "remote",
                fmt::format("{}: no bucket; write {}://BUCKET/KEY", path, scheme_));
  return name;
}

void ObjectStore::forget() {
  const std::scoped_lock lock(mutex_);
  access_.reset();
  cache_.reset();
  known_.clear();
  known_bytes_ = 0;
}

std::shared_ptr<const Access> ObjectStore::access() {
  const std::scoped_lock lock(mutex_);
  if (access_ == nullptr) access_ = std::make_shared<const Access>(find_access_());
  return access_;
}

std::shared_ptr<const Access> ObjectStore::access_after(
    const std::shared_ptr<const Access>& denied) {
  const std::scoped_lock lock(mutex_);
  if (access_ != denied) return access_;  // another thread has renewed it already
  auto now = std::make_shared<const Access>(find_access_());
  if (now->credentials == denied->credentials) return nullptr;
  log::info("remote", fmt::format("{}: the key of {} was denied and has been replaced there: it is "
                                  "read again",
                                  scheme_, now->credentials.source));
  return access_ = std::move(now);
}

std::shared_ptr<BlockCache> ObjectStore::cache() {
  const std::scoped_lock lock(mutex_);
  if (cache_ == nullptr) cache_ = std::make_shared<BlockCache>(files::store_limits().cache_bytes);
  return cache_;
}

bool ObjectStore::all_fit() {
  const std::scoped_lock lock(mutex_);
  return known_bytes_ <= files::store_limits().cache_bytes;
}

Answer ObjectStore::ask(const Name& name, const Request& request, int64_t max_body_bytes,
                        const std::string& place) {
  // A snapshot of the credentials: another thread may renew them meanwhile.
  const std::shared_ptr<const Access> from = access();
  Answer answer =
      send(*from, addressed(request, *from, name.bucket, name.key), max_body_bytes, place);
  // An expired key gives 400 (ExpiredToken). The answer to a HEAD has no reason.
  if (answer.status != 400 && answer.status != 401 && answer.status != 403) return answer;
  const std::shared_ptr<const Access> renewed = access_after(from);
  if (renewed == nullptr) return answer;
  return send(*renewed, addressed(request, *renewed, name.bucket, name.key), max_body_bytes, place);
}

void ObjectStore::refuse(const std::string& path, const Answer& answer) {
  const StoreFault fault = parse_fault(answer.body);
  const std::shared_ptr<const Access> from = access();
  const Credentials& used = from->credentials;
  const std::string text = said(fault, answer.status);
  const std::string region = header_of(answer, "x-amz-bucket-region");
  // Buckets belong to a region; the store names the right one.
  if (!region.empty() && region != from->region)
    throw Error(ExitCode::kConfig, "remote",
                fmt::format("{}: the bucket is in {}, not in {}: set AWS_REGION ({})", path, region,
                            from->region, text));
  if (answer.status == 401 || answer.status == 403)
    throw files::NoPermission(
        ExitCode::kInputMissing, "remote",
        fmt::format("{}: access is denied {} ({}); give it to them, or set {}", path,
                    used.source.empty() ? "to who has no key (none was found)"
                                        : "to the key of " + used.source,
                    text, from->hint));
  if (answer.status == 404)
    throw Error(ExitCode::kInputMissing, "remote",
                fmt::format("{}: {}", path,
                            fault.code == "NoSuchBucket" ? "there is no such bucket"
                                                         : "there is no such object"));
  // 412: the tag no longer matches. 416: the object has become shorter.
  if (answer.status == 412 || answer.status == 416) refuse_changed(path);
  throw Error(ExitCode::kIo, "remote", fmt::format("{}: the store refuses: {}", path, text));
}

std::optional<files::FileFacts> ObjectStore::look_at(const std::string& path) {
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
    throw Error(ExitCode::kIo, "remote", path + ": the store does not say how long it is");
  learn(facts);
  return facts;
}

std::vector<files::FileFacts> ObjectStore::list(const std::string& beginning) {
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
  std::sort(all.begin(), all.end(),
            [](const auto& one, const auto& other) { return one.path < other.path; });
  return all;
}

void ObjectStore::learn(const files::FileFacts& facts) {
  const std::scoped_lock lock(mutex_);
  if (known_.emplace(facts.path, facts).second) known_bytes_ += facts.num_bytes;
}

std::unique_ptr<files::RemoteFile> ObjectStore::open(const std::string& path) {
  const std::optional<files::FileFacts> facts = look_at(path);
  if (!facts)
    throw Error(ExitCode::kInputMissing, "remote", path + ": there is no such object or bucket");
  return std::make_unique<Object>(
      *facts,
      [this, facts = *facts](int64_t offset, int64_t num_bytes) {
        return read_range(facts, offset, num_bytes);
      },
      all_fit(), cache());
}

std::string ObjectStore::read_range(const files::FileFacts& facts, int64_t offset,
                                    int64_t num_bytes) {
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
                  facts.path + ": the store does not give parts of objects (Range)");
    refuse(facts.path, answer);
  }
  const std::string expected = fmt::format("bytes {}-{}/{}", offset, last, facts.num_bytes);
  const std::string given = header_of(answer, "content-range");
  if (answer.status == 206 && given != expected) {
    if (given.substr(0, given.find('/')) == expected.substr(0, expected.find('/')))
      refuse_changed(facts.path);
    throw Error(
        ExitCode::kIo, "remote",
        fmt::format("{}: '{}' was asked for, the store gives '{}'", facts.path, expected, given));
  }
  // A store that ignores If-Match is caught by its tag.
  if (const std::string tag = header_of(answer, "etag"); !facts.tag.empty() && tag != facts.tag)
    refuse_changed(facts.path);
  if (static_cast<int64_t>(answer.body.size()) != num_bytes)
    throw Error(ExitCode::kIo, "remote",
                fmt::format("{}: {} bytes from {} were asked for, the store gives {}", facts.path,
                            num_bytes, offset, answer.body.size()));
  return std::move(answer.body);
}

}  // namespace lockstep::remote
