#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Names of a save's files and the state file (docs/checkpoint_format.md).
namespace lockstep::checkpoint {

inline constexpr std::string_view kStateFile = "checkpoint";
inline constexpr std::string_view kTemporarySuffix = ".tmp";
/// SHARD.entries.tmp: what a rank tells rank 0 of its shard during a save.
inline constexpr std::string_view kEntriesSuffix = ".entries";

/// DIR/model.ckpt + 1200 -> DIR/model.ckpt-1200, which names a save.
std::string numbered(const std::string& prefix, int64_t number);
/// PREFIX.index and PREFIX.data-00000-of-00002; `prefix` with its number.
std::string index_path(const std::string& prefix);
std::string shard_path(const std::string& prefix, int32_t shard, int32_t num_shards);
/// Whether a file is there: of this host, or in a store (base/files/file_store.h). True too where
/// this cannot be found out: opening it then says why.
bool is_there(const std::string& path);
/// SHARD.entries.tmp
std::string entries_path(const std::string& shard_path);

/// The ending of a name of an index or a shard: .index, .data-00000-of-00002; else
/// nothing. A prefix may hold the like anywhere else.
std::string_view file_ending(std::string_view name);

/// Why saves cannot have this prefix (without its folder); nothing if they can. It may not end as
/// their files do, nor hold letters that TensorFlow takes for a pattern.
std::optional<std::string> fault_of_prefix_name(std::string_view name);

/// A file name taken apart: model.ckpt-1200.data-00000-of-00002 -> {model.ckpt, 1200,
/// data-00000-of-00002}.
struct FileName {
  std::string prefix;
  int64_t number = 0;
  std::string rest;
};
/// Nothing for names that are not exactly of that form (numbers without leading zeros): files of
/// others may be named nearly so.
std::optional<FileName> parse_file_name(std::string_view name);

/// The name that the file will have: without .tmp, and without the .entries before it of a rank's
/// list of what it wrote. The name itself if it is no temporary one.
std::string_view without_temporary_suffix(std::string_view name);

/// One committed save: its index exists. Nothing is said about its soundness.
struct SaveName {
  std::string prefix;  ///< DIR/model.ckpt-1200
  int64_t number = 0;
};
/// In numeric order, 9 before 10. `prefix_name` is model.ckpt; empty: any. No folder, no saves.
std::vector<SaveName> find_saves(const std::filesystem::path& dir,
                                 std::string_view prefix_name = "");

/// What the state file says; names as they stand there.
struct StateFile {
  std::string newest;
  std::vector<std::string> all;  ///< oldest first

  bool operator==(const StateFile&) const = default;
};
/// Written so that a reader sees the old text or the new one.
void write_state_file(const std::filesystem::path& dir, const StateFile& state);
/// Writes what `change` makes of the state file as it is, which is empty if there is none or it
/// cannot be read. Programs that save under other prefixes of the folder wait for each other
/// meanwhile, for some seconds at most and only on file systems with locks.
void change_state_file(const std::filesystem::path& dir,
                       const std::function<StateFile(StateFile)>& change);
/// Entries of the state file that belong to other prefixes and are there, for `change`.
std::vector<std::string> others_in(const StateFile& state, const std::filesystem::path& prefix);
/// Nothing if there is none. Throws Error(kBadData) if it cannot be parsed.
std::optional<StateFile> read_state_file(const std::filesystem::path& dir);
/// The saves of DIR/model.ckpt that it names, the newest last; each at its place beside the prefix.
std::vector<SaveName> named_by(const StateFile& state, const std::filesystem::path& prefix);

}  // namespace lockstep::checkpoint
