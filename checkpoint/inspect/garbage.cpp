#include "checkpoint/inspect/garbage.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/reader/bundle_reader.h"
#include "checkpoint/reader/verify.h"
#include "checkpoint/restore/latest_checkpoint.h"
#include "checkpoint/save/best_save.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kIndex = "index";

/// Files of one checkpoint, with or without an index.
struct SaveFiles {
  bool has_index = false;
  std::vector<std::string> names;  ///< index first, then shards; without temporary files
};

/// Checkpoints by prefix name, then number.
using Saves = std::map<std::string, std::map<int64_t, SaveFiles>>;

int64_t bytes_of(const std::filesystem::path& path) {
  std::error_code fault;
  const auto size = std::filesystem::file_size(path, fault);
  return fault ? 0 : static_cast<int64_t>(size);
}

/// True for a temporary file of a checkpoint or of the state file.
bool is_temporary(std::string_view name) {
  const std::string_view stem = without_temporary_suffix(name);
  return stem.size() < name.size() && (stem == kStateFile || parse_file_name(stem).has_value());
}

class Folder {
 public:
  explicit Folder(std::filesystem::path dir) : dir_(std::move(dir)) {
    for (const std::string& name : files::list(dir_)) {
      if (is_temporary(name)) {
        add(name, "temporary");
        continue;
      }
      const std::optional<FileName> parts = parse_file_name(name);
      if (!parts) continue;
      SaveFiles& save = saves_[parts->prefix][parts->number];
      save.has_index = save.has_index || parts->rest == kIndex;
      save.names.insert(parts->rest == kIndex ? save.names.begin() : save.names.end(), name);
    }
  }

  std::vector<Garbage> garbage(const std::optional<int64_t>& keep) {
    const std::optional<std::string> latest = keep ? latest_checkpoint(dir_) : std::nullopt;
    for (const auto& [prefix, by_number] : saves_) {
      // Without `keep` nothing is old, and only debris is listed.
      const int64_t first_kept = keep ? first_to_keep(prefix, *keep) : -1;
      const std::optional<BestSave> best = read_best((dir_ / prefix).string());
      for (const auto& [number, save] : by_number) {
        const bool is_spared =
            (best && best->number == number) || latest == full_prefix(prefix, number);
        look_at(prefix, number, save, number < first_kept && !is_spared);
      }
    }
    return std::move(garbage_);
  }

 private:
  void add(const std::string& name, std::string_view reason) {
    garbage_.push_back({name, reason, bytes_of(dir_ / name)});
  }

  std::string full_prefix(const std::string& prefix, int64_t number) const {
    return numbered((dir_ / prefix).string(), number);
  }

  /// Returns the number of the keep-th newest complete checkpoint; -1 if there are fewer.
  int64_t first_to_keep(const std::string& prefix, int64_t keep) const {
    const auto& by_number = saves_.at(prefix);
    for (auto save = by_number.rbegin(); save != by_number.rend(); ++save) {
      if (!save->second.has_index || quick_check(full_prefix(prefix, save->first))) continue;
      if (--keep == 0) return save->first;
    }
    return -1;
  }

  void look_at(const std::string& prefix, int64_t number, const SaveFiles& save, bool is_old) {
    if (!save.has_index || is_old) {
      for (const std::string& name : save.names) add(name, save.has_index ? kOld : "no_index");
      return;
    }
    const std::optional<int32_t> num_shards = shards_of(full_prefix(prefix, number));
    // With an unreadable index nobody can say which shards belong to it, so all stay.
    if (!num_shards) return;
    std::set<std::string> own;
    const std::string bare = numbered(prefix, number);
    for (int32_t shard = 0; shard < *num_shards; ++shard)
      own.insert(shard_path(bare, shard, *num_shards));
    for (const std::string& name : save.names)
      if (name != index_path(bare) && !own.contains(name)) add(name, "other_shards");
  }

  /// Returns the number of shards; nullopt if the index cannot be read.
  static std::optional<int32_t> shards_of(const std::string& prefix) {
    try {
      return BundleReader(prefix).index().num_shards;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::filesystem::path dir_;
  Saves saves_;
  std::vector<Garbage> garbage_;
};

}  // namespace

std::vector<Garbage> find_garbage(const std::filesystem::path& dir, std::optional<int64_t> keep) {
  check(!keep || *keep >= 1, "at least one save stays");
  return Folder(dir).garbage(keep);
}

}  // namespace lockstep::checkpoint
