#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/files/file_store.h"
#include "remote/block_cache.h"
#include "remote/credentials.h"
#include "remote/http.h"

namespace lockstep::remote {

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

}  // namespace lockstep::remote
