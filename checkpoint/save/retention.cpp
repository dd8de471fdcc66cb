#include "checkpoint/save/retention.h"

#include <filesystem>

#include "base/error.h"
#include "base/files/files.h"

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
  // The one just written counts among those to keep, but is never removed itself.
  std::erase_if(surplus, [&](const SaveName& save) { return save.number == just_written; });
  surplus.resize(std::min(num_surplus, surplus.size()));
  return surplus;
}

void remove_save(const std::string& prefix) {
  const std::filesystem::path path(prefix);
  const std::filesystem::path dir = path.parent_path();
  std::error_code unknown;  // on an error, try to remove it
  if (std::filesystem::exists(index_path(prefix), unknown) || unknown) {
    files::remove_file(index_path(prefix));
    files::sync_folder(dir);
  }
  const std::string shards = path.filename().string() + ".data-";
  for (const std::string& name : files::list(dir.empty() ? "." : dir))
    if (name.starts_with(shards) && !name.ends_with(kTemporarySuffix))
      files::remove_file(dir / name);
}

void remove_left_over(const std::string& prefix, const std::set<int64_t>& numbers) {
  if (numbers.empty()) return;
  const std::filesystem::path dir = std::filesystem::path(prefix).parent_path();
  const std::string prefix_name = std::filesystem::path(prefix).filename().string();
  std::optional<Error> fault;
  for (const std::string& name : files::list(dir.empty() ? "." : dir)) {
    const std::string_view stem = without_temporary_suffix(name);
    const bool is_temporary = stem.size() < name.size();
    const std::optional<FileName> parts = parse_file_name(stem);
    if (!parts || parts->prefix != prefix_name || !numbers.contains(parts->number)) continue;
    std::error_code unknown;
    const bool is_committed =
        std::filesystem::exists(index_path(numbered(prefix, parts->number)), unknown) || unknown;
    // A committed checkpoint keeps its shards; only its temporary files go.
    if (!is_temporary && is_committed) continue;
    try {
      files::remove_file(dir / name);
    } catch (const Error& each) {  // remove the others anyway
      if (!fault) fault = each;
    }
  }
  if (fault) throw Error(*fault);
}

}  // namespace lockstep::checkpoint
