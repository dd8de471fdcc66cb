#include "checkpoint/retention.h"

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"

namespace lockstep::checkpoint {

std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, const KeepRules& rules,
                                    int64_t just_written) {
  if (rules.keep_max == -1) return {};
  const auto stays = [&](const SaveName& save) {
    return save.number == rules.best ||
           (rules.keep_every > 0 && save.number % rules.keep_every == 0);
  };
  std::vector<SaveName> surplus;
  for (const SaveName& save : saves)
    if (!stays(save) && save.number <= just_written) surplus.push_back(save);
  const auto num_kept = std::min(static_cast<size_t>(rules.keep_max), surplus.size());
  const size_t num_surplus = surplus.size() - num_kept;
  std::erase_if(surplus, [&](const SaveName& save) { return save.number == just_written; });
  surplus.resize(std::min(num_surplus, surplus.size()));
  return surplus;
}

void remove_save(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  const std::filesystem::path dir = path.parent_path();
  std::error_code unknown;  // then it is tried
  if (std::filesystem::exists(index_path(prefix), unknown) || unknown) {
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
    const bool is_temporary = name.ends_with(kTemporarySuffix);
    const size_t length = name.size() - (is_temporary ? kTemporarySuffix.size() : 0);
    const std::optional<FileName> parts = parse_own_name(std::string_view(name).substr(0, length));
    if (!parts || parts->prefix != prefix_name) continue;
    if (committed.contains(parts->number) && !is_temporary) continue;
    files::remove_file(dir / name);
  }
}

}  // namespace lockstep::checkpoint
