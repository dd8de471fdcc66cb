#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/format/checkpoint_files.h"
#include "dist/communicator.h"

/// Search, verification and restore of checkpoints.
namespace lockstep::checkpoint {

/// Returns all defects of one checkpoint (`prefix` with its number), one sentence each; empty if it
/// is valid. Reads every byte of every file. Throws only for read faults of the machine (kIo) and
/// for a prefix that ends in .index (kUsage).
std::vector<std::string> verify(const std::string& prefix);

/// Quick check before a restore: the index is valid, and each shard has the size that the index
/// implies. Returns the defect, or nullopt. Throws for read faults of the machine (kIo).
std::optional<std::string> quick_check(const std::string& prefix);

/// Returns the newest checkpoint of a folder, DIR/model.ckpt-10; nullopt if there is none.
///
/// It is the one that the state file names, if that is complete (index and shards exist with their
/// sizes). So editing that file goes back to an older checkpoint, as in TensorFlow. One case has
/// priority: the same prefix, a higher number, and an index newer than the state file. Its program
/// was killed before it wrote the state file. If the state file is missing, or names an incomplete
/// checkpoint, the highest number counts. With `prefix_name` (model.ckpt), others do not count.
/// finish_replacements() comes first.
///
/// Throws Error(kUsage) if `dir` names a checkpoint instead of its folder. Throws kIo if a
/// checkpoint cannot be read for a reason outside of it.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             std::string_view prefix_name = "");
/// Returns the same without finish_replacements(), so it changes nothing.
std::optional<std::string> latest_committed(const std::filesystem::path& dir,
                                            std::string_view prefix_name = "");

/// Returns rank 0's answer on every rank, or throws its error. Collective.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             dist::Communicator& ranks);

struct RestoreReport {
  /// Checkpoint with its number. If copies on the hosts gave the values, the store's,
  /// unless it lacks this checkpoint.
  std::string prefix;
  int64_t number = 0;               ///< -1 if the prefix has none
  std::vector<std::string> unused;  ///< keys of the checkpoint that the state does not request
  std::vector<std::string> filled;  ///< missing keys that got value_if_missing
  int64_t num_damaged = 0;          ///< newer checkpoints that restore_latest() skipped
  bool is_unstored = false;         ///< only copies on the hosts have this checkpoint
};

/// Copies one checkpoint into the live tensors and texts. Any world size may have written it;
/// tensors may be whole, sliced or sparse. Not collective.
///
/// For an entry with `held`, only those elements are written, and only slices with such elements
/// are read. All names, types and shapes are checked before the first value is written. A missing
/// key is an error unless the entry has a value_if_missing. `num_threads` threads read; 0:
/// default_num_threads().
///
/// Throws Error(kConfig) if another model or optimizer saved it; kBadData, kInputMissing, kIo.
/// After an error in the middle (damaged values, a failed read) each variable is entirely old or
/// entirely new. It is written only after it was read and verified.
RestoreReport restore(const std::string& prefix, const StateList& state, int num_threads = 0);

/// Calls restore() on every rank, or throws the same Error on every rank. From a store, each byte
/// that all ranks need is read by one rank, which sends it to the others. Collective.
RestoreReport restore_on_all(const std::string& prefix, const StateList& state,
                             dist::Communicator& control);

/// Restores the first of newest_first() that every rank can restore, chosen by rank 0. The state
/// file does not decide, because the clocks of hosts may differ. Collective. Each one that fails is
/// skipped with a warning about its defect. Returns nullopt if the folder has none; training may
/// then start at step 0.
///
/// Throws Error(kBadData).everywhere() with each defect if checkpoints exist and none can be
/// restored. So a run never starts over by mistake. Also throws faults outside the checkpoint (kIo,
/// and kConfig: the run has another model or optimizer).
///
/// `copies`: folder of each host for copies of the newest checkpoint (checkpoint/save/host_copy.h);
/// empty: none. If the hosts together have one, it is tried before the same one in the store. It is
/// also tried first if it is newer than all in the store, and the store never had it.
std::optional<RestoreReport> restore_latest(const std::filesystem::path& dir,
                                            std::string_view prefix_name, const StateList& state,
                                            dist::Communicator& control,
                                            const std::filesystem::path& copies = {});

/// Returns all checkpoints by number, the highest first. They include those that the state file
/// names although their index is missing, as a sign that they existed.
std::vector<SaveName> newest_first(const std::filesystem::path& dir, std::string_view prefix_name);

}  // namespace lockstep::checkpoint
