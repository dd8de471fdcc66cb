#include "checkpoint/retention.h"

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"

namespace lockstep::checkpoint {

std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, int64_t keep_max,
                                    int64_t just_written) {
  std::vector<SaveName> surplus;
  if (keep_max < 0) return surplus;
  auto left = static_cast<int64_t>(saves.size());
  for (const SaveName& save : saves) {
    if (left <= keep_max) break;
    if (save.number == just_written) continue;
    surplus.push_back(save);
    --left;
  }
  return surplus;
}

void remove_save(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  const std::filesystem::path dir = path.parent_path();
  if (std::filesystem::exists(index_path(prefix))) {
    files::remove_file(index_path(prefix));
    files::sync_folder(dir);
  }
  const std::string shards = path.filename().string() + ".data-";
  for (const std::string& name : files::list(dir.empty() ? "." : dir))
    if (name.starts_with(shards) && !name.ends_with(kTemporarySuffix))
      files::remove_file(dir / name);
}

void remove_debris(const std::filesystem::path& dir, const std::string& prefix_name) {
  std::set<int64_t> committed;
  for (const SaveName& save : find_saves(dir, prefix_name)) committed.insert(save.number);
  for (const std::string& name : files::list(dir)) {
    const std::optional<FileName> parts = parse_file_name(name);
    if (!parts || parts->prefix != prefix_name) continue;
    if (committed.contains(parts->number) && !parts->rest.ends_with(kTemporarySuffix)) continue;
    files::remove_file(dir / name);
  }
}

}  // namespace lockstep::checkpoint
