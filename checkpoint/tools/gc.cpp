#include "checkpoint/tools/gc.h"

#include <ctime>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/log.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/store_commit.h"
#include "checkpoint/tools/tensor_values.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kUpload = "upload";

int64_t bytes_of(const std::filesystem::path& path) {
  int64_t num_bytes = 0;
  (void)fault_of([&] { num_bytes = files::facts_of(path).num_bytes; });
  return num_bytes;
}

class GarbageFinder {
 public:
  explicit GarbageFinder(std::filesystem::path dir) : dir_(std::move(dir)), folder_(dir_) {}

  std::vector<Garbage> garbage(const std::optional<int64_t>& keep) {
    for (const std::string& name : unfinished_replacements(dir_))
      spared_.insert({name, name + std::string(kTemporarySuffix)});
    for (const std::string& name : folder_.temporary_files()) add(name, "temporary");
    const std::optional<std::string> latest = keep ? latest_committed(dir_) : std::nullopt;
    for (const auto& [prefix, by_number] : folder_.saves()) {
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
    if (!spared_.contains(name)) garbage_.push_back({name, reason, bytes_of(dir_ / name)});
  }

  std::string full_prefix(const std::string& prefix, int64_t number) const {
    return numbered((dir_ / prefix).string(), number);
  }

  /// Returns the number of the keep-th newest complete checkpoint; -1 if there are fewer.
  int64_t first_to_keep(const std::string& prefix, int64_t keep) const {
    const auto& by_number = folder_.saves().at(prefix);
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
    // With an unreadable index it is unknown which shards belong to it, so all stay.
    if (!num_shards) return;
    std::set<std::string> own;
    const std::string bare = numbered(prefix, number);
    for (int32_t shard = 0; shard < *num_shards; ++shard)
      own.insert(shard_path(bare, shard, *num_shards));
    for (const std::string& name : save.names)
      if (file_ending(name).starts_with(".data") && !own.contains(name)) add(name, "other_shards");
  }

  /// Returns the number of shards; nullopt if the index cannot be read.
  static std::optional<int32_t> shards_of(const std::string& prefix) {
    std::optional<int32_t> num_shards;
    (void)fault_of([&] { num_shards = BundleReader(prefix).index().num_shards; });
    return num_shards;
  }

  std::filesystem::path dir_;
  CheckpointFolder folder_;
  std::set<std::string> spared_;
  std::vector<Garbage> garbage_;
};

}  // namespace

std::vector<Garbage> find_garbage(const std::filesystem::path& dir, std::optional<int64_t> keep) {
  check(!keep || *keep >= 1, "at least one checkpoint is kept");
  return GarbageFinder(dir).garbage(keep);
}

// collect_garbage(): the order matters. It takes all locks, lists the garbage, rewrites the state
// file, then removes. So no reader is sent to a checkpoint that goes.

namespace {

constexpr files::FolderLockTimes kTimes{.patience_s = 1};

using FolderLocks = std::vector<std::unique_ptr<files::FolderLock>>;

/// Takes the locks of the folder itself and of its parent, the run's folder, if they have lock
/// files.
FolderLocks folder_locks(const std::filesystem::path& dir) {
  const std::filesystem::path folder = std::filesystem::canonical(dir);
  FolderLocks locks;
  for (const std::filesystem::path& place : {folder.parent_path(), folder}) try {
      if (std::filesystem::exists(place / ".lock"))
        locks.push_back(std::make_unique<files::FolderLock>(place, kTimes));
    } catch (const Error& fault) {
      if (fault.code() != ExitCode::kCannotCreate) throw;
      // The lock's message names the holder; gc only adds that nothing was removed.
      throw Error(ExitCode::kCannotCreate, "gc",
                  fmt::format("nothing was removed, as a run may be writing here: {}",
                              std::string(fault.what())));
    }
  return locks;
}

/// Right to save under each prefix with files here, so that no program saves meanwhile.
class SaveLocks {
 public:
  /// Returns the prefix of a checkpoint's file or of a journal.
  static std::optional<std::string> prefix_of(const std::string& name) {
    if (name.ends_with(kJournalSuffix)) return name.substr(0, name.size() - kJournalSuffix.size());
    const auto parts = parse_file_name(without_temporary_suffix(name));
    return parts ? std::optional(parts->prefix) : std::nullopt;
  }

  explicit SaveLocks(const std::filesystem::path& dir) {
    for (const std::string& name : files::list(dir)) {
      const std::optional<std::string> prefix = prefix_of(name);
      if (!prefix || !prefixes_.insert(*prefix).second) continue;
      try {
        locks_.push_back(std::make_unique<SaveLock>((dir / *prefix).string(), kTimes.patience_s));
        if (locks_.back()->is_held()) is_excluded_.insert(*prefix);
      } catch (const Error& fault) {
        if (fault.code() != ExitCode::kCannotCreate) throw;
        throw Error(ExitCode::kCannotCreate, "gc",
                    fmt::format("nothing was removed: {}", plain_text(fault)));
      }
    }
  }
  /// Marks the journals as finished, since their garbage was removed.
  void done() {
    for (const auto& lock : locks_)
      if (lock->is_held()) lock->done();
  }
  bool covers(const std::string& name) const {
    const std::optional<std::string> prefix = prefix_of(name);
    return !prefix || prefixes_.contains(*prefix);
  }
  /// True if no program can be saving under the file's prefix meanwhile.
  bool excludes(const std::string& name) const {
    return is_excluded_.contains(prefix_of(name).value_or(""));
  }

 private:
  std::set<std::string> prefixes_, is_excluded_;
  std::vector<std::unique_ptr<SaveLock>> locks_;
};

/// Spares files that a program may be writing now. That is possible on a file system without locks.
/// In a run's folder, the run's heartbeat says that it has ended; then nothing is spared.
void leave_what_may_be_written(const SaveLocks& locks, std::vector<Garbage>* garbage) {
  size_t num_left = 0;
  std::erase_if(*garbage, [&](const Garbage& one) {
    const bool may_be_written = one.reason != kOld && !locks.excludes(one.name);
    num_left += may_be_written ? 1 : 0;
    return may_be_written;
  });
  if (num_left > 0)
    log::warning(
        "gc",
        fmt::format("{} files of incomplete checkpoints are kept, because this file system has no "
                    "locks: a program may be writing them. Remove them by hand if none is",
                    num_left));
}

/// Spares files of a store that a save in progress may be writing, and in a dry run those that
/// finish_commits() would have made a checkpoint of.
void leave_young_objects(const std::filesystem::path& dir, const GcOptions& options,
                         std::vector<Garbage>* garbage) {
  const CheckpointFolder folder(dir);
  const std::vector<std::string> undone = folder.undone();
  const auto now_s = static_cast<double>(std::time(nullptr));
  std::erase_if(*garbage, [&](const Garbage& one) {
    if (one.reason != "no_index") return false;
    const std::string path = (dir / one.name).string();
    const bool is_undone = std::ranges::any_of(
        undone, [&](const std::string& prefix) { return path.starts_with(prefix + "."); });
    const auto written_s = static_cast<double>(files::facts_of(path).written_s);
    return (options.dry_run && is_undone) || now_s - written_s < options.min_age_s;
  });
}

/// Adds the uploads that no program will complete, after ending them.
void end_uploads(const std::filesystem::path& dir, const GcOptions& options,
                 std::vector<Garbage>* garbage) {
  for (const std::string& path :
       abort_old_uploads((dir / "").string(), options.min_age_s, options.dry_run))
    garbage->push_back({std::filesystem::path(path).filename().string(), kUpload, 0});
}

/// Names the newest checkpoint if the state file does not. Its program was killed between the
/// commit and the state file, and would have named it.
void name_newest(const std::filesystem::path& dir, StateFile* state) {
  const std::optional<std::string> newest = latest_committed(dir);
  if (!newest || quick_check(*newest)) return;
  const std::string name = std::filesystem::path(*newest).filename().string();
  if (dir / name != *newest || name == state->newest) return;
  state->newest = name;
  std::erase(state->all, name);
  state->all.push_back(name);
}

/// Rewrites the state file: removes checkpoints whose index goes, and names the newest that stays.
void rewrite_state(const std::filesystem::path& dir, const std::vector<Garbage>& garbage) {
  std::set<std::string> gone;
  for (const Garbage& one : garbage)
    if (one.name.ends_with(".index")) gone.insert(one.name.substr(0, one.name.size() - 6));
  if (!read_state_file_if_sound(dir)) return;
  change_state_file(dir, [&](StateFile state) {
    name_newest(dir, &state);
    std::erase_if(state.all, [&](const std::string& name) { return gone.contains(name); });
    if (gone.contains(state.newest) && !state.all.empty()) state.newest = state.all.back();
    return state;
  });
}

void remove_all(const std::filesystem::path& dir, const std::vector<Garbage>& garbage) {
  rewrite_state(dir, garbage);
  for (const Garbage& one : garbage) {
    if (one.reason == kUpload) continue;  // has no file
    files::remove_file(dir / one.name);
    if (one.name.ends_with(".index")) files::sync_folder(dir);  // from here no reader trusts it
  }
  if (!garbage.empty()) files::sync_folder(dir);
}

/// Returns the names of the remaining checkpoints.
std::vector<std::string> rest_of(const std::filesystem::path& dir,
                                 const std::vector<Garbage>& garbage) {
  std::set<std::string> gone;
  for (const Garbage& one : garbage) gone.insert((dir / one.name).string());
  std::vector<std::string> rest;
  for (const SaveName& save : find_saves(dir))
    if (!gone.contains(index_path(save.prefix))) rest.push_back(save.prefix);
  return rest;
}

/// Returns a reason for messages.
const char* meaning(std::string_view reason) {
  if (reason == "temporary") return "temporary, of an interrupted save";
  if (reason == "no_index") return "of a checkpoint without an index";
  if (reason == "other_shards") return "a shard that the index does not name";
  if (reason == kUpload) return "an unfinished upload";
  return "of a checkpoint beyond those to keep";
}

std::string as_text(const std::string& dir, const std::vector<Garbage>& garbage,
                    const std::vector<std::string>& rest, int64_t num_bytes, bool dry_run) {
  std::string text;
  for (const Garbage& one : garbage)
    text += fmt::format("{:>14}  {}  ({})\n", one.num_bytes, one.name, meaning(one.reason));
  return text + fmt::format("{}: {} {} files, {} bytes; {} checkpoints kept\n", dir,
                            dry_run ? "would remove" : "removed", garbage.size(), num_bytes,
                            rest.size());
}

std::string as_json(const std::string& dir, const std::vector<Garbage>& garbage,
                    const std::vector<std::string>& rest, int64_t num_bytes, bool dry_run) {
  std::vector<std::string> removed, saves;
  for (const Garbage& one : garbage)
    removed.push_back(fmt::format(R"({{"file": {}, "reason": "{}", "bytes": {}}})",
                                  json_string(one.name), one.reason, one.num_bytes));
  for (const std::string& prefix : rest) saves.push_back(json_string(prefix));
  return fmt::format(
      "{{\"dir\": {}, \"dry_run\": {}, \"removed\": [{}], \"bytes_freed\": {}, \"saves\": [{}]}}\n",
      json_string(dir), dry_run, fmt::join(removed, ", "), num_bytes, fmt::join(saves, ", "));
}

}  // namespace

Answer collect_garbage(const std::string& dir, const GcOptions& options) {
  require_folder(dir);
  const bool is_remote = files::is_remote(dir);
  const FolderLocks locks = is_remote ? FolderLocks() : folder_locks(dir);
  if (!options.dry_run) finish_replacements(dir);
  std::optional<SaveLocks> save_locks;
  // Locks before the listing: afterwards no save can change what was listed.
  if (!options.dry_run && !is_remote) save_locks.emplace(dir);
  std::vector<Garbage> garbage = find_garbage(dir, options.keep);
  if (save_locks)  // a prefix without lock appeared since: another program saves there now
    std::erase_if(garbage, [&](const Garbage& one) { return !save_locks->covers(one.name); });
  if (save_locks && locks.empty()) leave_what_may_be_written(*save_locks, &garbage);
  if (is_remote) leave_young_objects(dir, options, &garbage);
  const std::vector<std::string> rest = rest_of(dir, garbage);
  if (is_remote) end_uploads(dir, options, &garbage);
  if (!options.dry_run) remove_all(dir, garbage);
  if (save_locks) save_locks->done();
  int64_t num_bytes = 0;
  for (const Garbage& one : garbage) num_bytes += one.num_bytes;
  const auto answer = options.json ? as_json : as_text;
  return {answer(dir, garbage, rest, num_bytes, options.dry_run)};
}

}  // namespace lockstep::checkpoint
