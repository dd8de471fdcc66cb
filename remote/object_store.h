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

/// Buckets behind the S3 interface: SCHEME://bucket/key. Access is looked for when it is first
/// needed, and once more where a store denies it, because temporary keys expire. An object is read
/// with the tag (If-Match) that it had when it was first looked at, so that one which is replaced
/// meanwhile is never mixed with the old one, until forget().
class ObjectStore final : public files::FileStore {
 public:
  ObjectStore(std::string scheme, std::function<Access()> find_access)
      : scheme_(std::move(scheme)), find_access_(std::move(find_access)) {}

  std::unique_ptr<files::RemoteFile> open(const std::string& path) override;
  std::optional<files::FileFacts> look_at(const std::string& path) override;
  std::vector<files::FileFacts> list(const std::string& beginning) override;
  void learn(const files::FileFacts& facts) override;

  /// Begins anew: facts, cached content and keys are asked for again. Files that are open keep
  /// what they know.
  void forget();

 private:
  struct Name {
    std::string bucket, key;
  };
  Name name_of(const std::string& path) const;
  std::shared_ptr<const Access> access();
  /// Keys that their sources hold now, in place of `denied`; null if that is what they still say.
  std::shared_ptr<const Access> access_after(const std::shared_ptr<const Access>& denied);
  std::shared_ptr<BlockCache> cache();
  bool all_fit();
  /// Sends what `request` says (method, query, headers) of the object.
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
