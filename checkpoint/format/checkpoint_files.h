#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Names of a checkpoint's files, and the state file (docs/design/checkpoint_format.md).
namespace lockstep::checkpoint {

inline constexpr std::string_view kStateFile = "checkpoint";
inline constexpr std::string_view kTemporarySuffix = ".tmp";
/// Suffix of the record of a save in an object store (checkpoint/save/store_commit.h).
inline constexpr std::string_view kRecordSuffix = ".commit";
/// Suffix of SHARD.entries.tmp, in which a rank lists for rank 0 what it wrote during a save.
inline constexpr std::string_view kEntriesSuffix = ".entries";

/// Returns a checkpoint's name: DIR/model.ckpt and 1200 give DIR/model.ckpt-1200.
std::string numbered(const std::string& prefix, int64_t number);
/// PREFIX.index and PREFIX.data-00000-of-00002; `prefix` includes the number.
std::string index_path(const std::string& prefix);
std::string shard_path(const std::string& prefix, int32_t shard, int32_t num_shards);
/// Returns the folder of a prefix; "." for a name alone.
std::filesystem::path folder_of(const std::filesystem::path& prefix);
/// True if a file exists on this host or in a store (base/files/files.h). Also true if that
/// cannot be found out; opening the file then gives the reason.
bool is_there(const std::string& path);
/// Returns what a run must change to keep away from the checkpoints of this folder or prefix, for
/// an advice: "another run.project_dir", or for a store and for copies of its checkpoints "another
/// folder in checkpoint.prefix".
std::string another_place(const std::filesystem::path& path);
/// Throws Error(kInputMissing) for what is no folder, with a hint if it looks like the address of a
/// store.
void require_folder(const std::string& dir);
/// Returns SHARD.entries.tmp.
std::string entries_path(const std::string& shard_path);

/// Returns the ending of an index's or shard's name (.index, .data-00000-of-00002), else an empty
/// text. The same characters elsewhere in the name do not count.
std::string_view file_ending(std::string_view name);

/// Returns why checkpoints cannot have this prefix (without its folder); nullopt if they can. A
/// prefix must not end as a checkpoint's files do. It must not contain characters that TensorFlow
/// treats as a pattern.
std::optional<std::string> fault_of_prefix_name(std::string_view name);

/// Parts of a file name: model.ckpt-1200.data-00000-of-00002 gives {model.ckpt, 1200,
/// data-00000-of-00002}.
struct FileName {
  std::string prefix;
  int64_t number = 0;
  std::string rest;
};
/// Splits a file name; nullopt for names not exactly of that form (numbers without leading zeros).
/// Files of other programs may have similar names.
std::optional<FileName> parse_file_name(std::string_view name);
/// Splits a checkpoint's name, DIR/model.ckpt-1200; `rest` is "index". The folder does not count.
std::optional<FileName> parse_save_name(const std::filesystem::path& prefix);

/// Returns the file's final name: without .tmp, and without .entries before it. Returns the name
/// itself if it is not temporary.
std::string_view without_temporary_suffix(std::string_view name);

/// Name of a committed checkpoint: its index exists. It may still be damaged.
struct SaveName {
  std::string prefix;  ///< DIR/model.ckpt-1200
  int64_t number = 0;
};

/// Files of one checkpoint, with or without an index; no temporary ones.
struct SaveFiles {
  bool has_index = false, has_record = false;
  std::vector<std::string> names;  ///< record and index first, then shards
};

/// Files of all checkpoints in a folder, as the constructor finds them. A missing folder has none.
class CheckpointFolder {
 public:
  /// Checkpoints by prefix (model.ckpt), then number.
  using Saves = std::map<std::string, std::map<int64_t, SaveFiles>>;

  explicit CheckpointFolder(const std::filesystem::path& dir);

  const Saves& saves() const { return saves_; }
  /// Returns the files of DIR/model.ckpt-1200; null if it has none.
  const SaveFiles* find(const std::string& prefix) const;
  /// Returns the checkpoints that have a record and no index: DIR/model.ckpt-1200.
  std::vector<std::string> undone() const;
  /// Returns the temporary files of checkpoints and of the state file.
  const std::vector<std::string>& temporary_files() const { return temporary_; }
  /// Returns the committed checkpoints in numeric order, 9 before 10. `prefix_name` is model.ckpt;
  /// empty: any.
  std::vector<SaveName> committed(std::string_view prefix_name = "") const;
  /// Removes the files of DIR/model.ckpt-1200. The index goes first and durably, so that from then
  /// on no reader trusts the shards. Temporary files stay, because they may belong to the next save
  /// of this number.
  void remove(const std::string& prefix) const;

 private:
  std::filesystem::path dir_;
  Saves saves_;
  std::vector<std::string> temporary_;
};

/// Returns CheckpointFolder(dir).committed(prefix_name).
std::vector<SaveName> find_saves(const std::filesystem::path& dir,
                                 std::string_view prefix_name = "");

/// Newest commit of a folder, by number. The time of its index distinguishes commits of one number.
struct Commit {
  std::string prefix;   ///< empty: none
  int64_t written = 0;  ///< of std::filesystem::file_time_type
};
Commit newest_commit(const std::filesystem::path& dir, std::string_view prefix_name = "");

/// Content of the state file, with the names as written there.
struct StateFile {
  std::string newest;
  std::vector<std::string> all;  ///< oldest first

  bool operator==(const StateFile&) const = default;
};
/// Writes the state file atomically: a reader sees the old text or the new one.
void write_state_file(const std::filesystem::path& dir, const StateFile& state);
/// Replaces the state file by the result of `change`, whose argument is the current one. That is
/// empty if the file is missing or unreadable. Programs with other prefixes in the folder wait
/// meanwhile, for some seconds at most. They wait only on file systems with locks.
void change_state_file(const std::filesystem::path& dir,
                       const std::function<StateFile(StateFile)>& change);
/// Returns the entries of the state file with other prefixes whose checkpoints exist. For use in
/// `change`.
std::vector<std::string> others_in(const StateFile& state, const std::filesystem::path& prefix);
/// Reads the state file; nullopt if there is none. Throws Error(kBadData) if it cannot be parsed.
std::optional<StateFile> read_state_file(const std::filesystem::path& dir);
/// Returns nullopt, with a warning, also if it cannot be read: it can be rebuilt from the folder.
std::optional<StateFile> read_state_file_if_sound(const std::filesystem::path& dir);
/// Returns the checkpoints of DIR/model.ckpt that the state file names, the newest last, with paths
/// next to the prefix.
std::vector<SaveName> named_by(const StateFile& state, const std::filesystem::path& prefix);

// Checks of names that users give for checkpoints, with hints for common mistakes.

/// Returns the checkpoint's name, DIR/NAME-NUMBER, unchanged. Only names are examined. Names of
/// foreign checkpoints need no number.
///
/// Throws Error(kUsage) with a hint for a file of a checkpoint (.index, .data-00000-of-00001,
/// .tmp), a folder, or an empty name. Throws Error(kInputMissing) if the checkpoint does not exist,
/// with the names of those that do. Reasons are a missing number, another number, an empty folder,
/// or a missing folder.
std::string require_save(const std::string& prefix);

/// Returns the prefix for new checkpoints, DIR/NAME, unchanged. Throws Error(kUsage) if it has no
/// file name or ends as a checkpoint's files do. Throws it too for characters that TensorFlow
/// treats as a pattern.
std::string require_new_prefix(const std::string& prefix);

}  // namespace lockstep::checkpoint
