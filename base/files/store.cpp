// The table of stores. They are added before threads start and never removed, so lookups need no
// lock.
#include "base/files/store.h"

#include <map>

namespace lockstep::files {
namespace {

using Stores = std::map<std::string, std::unique_ptr<FileStore>, std::less<>>;

Stores& stores() {
  static Stores all;
  return all;
}

/// Limits of all stores, set before files are read.
StoreLimits& limits_of_all() {
  static StoreLimits limits;
  return limits;
}

/// Returns "s3" of "s3://bucket/key"; empty for a path of this host.
std::string_view scheme_of(std::string_view path) {
  const size_t end = path.find("://");
  if (end == std::string_view::npos) return {};
  const std::string_view scheme = path.substr(0, end);
  return scheme.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") == std::string_view::npos
             ? scheme
             : std::string_view();
}

}  // namespace

void add_store(const std::string& scheme, std::unique_ptr<FileStore> store) {
  stores()[scheme] = std::move(store);
}

FileStore* store_of(const std::filesystem::path& path) {
  const std::string_view scheme = scheme_of(path.native());
  if (scheme.empty()) return nullptr;
  if (const auto found = stores().find(scheme); found != stores().end()) return found->second.get();
  std::string known;
  for (const auto& [name, store] : stores()) known += (known.empty() ? "" : ", ") + name + "://";
  throw Error(ExitCode::kConfig, "files",
              path.string() + ": files are read from this host's folders" +
                  (known.empty() ? "" : " and from " + known));
}

WritableStore& writable_store_of(const std::filesystem::path& path) {
  auto* const store = dynamic_cast<WritableStore*>(store_of(path));
  if (store != nullptr) return *store;
  throw Error(ExitCode::kConfig, "files", path.string() + ": this store takes no files");
}

bool is_remote(const std::filesystem::path& path) { return !scheme_of(path.native()).empty(); }

void set_store_limits(const StoreLimits& limits) { limits_of_all() = limits; }

const StoreLimits& store_limits() { return limits_of_all(); }

}  // namespace lockstep::files
