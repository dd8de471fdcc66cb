#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/files/save_files.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

struct RestoreReport {
  std::string prefix;               ///< of the save, with its number
  int64_t number = 0;               ///< -1 if the prefix has none
  std::vector<std::string> unused;  ///< keys that the save holds and the state does not ask for
  std::vector<std::string> filled;  ///< keys that the save lacks and that got value_if_missing
  int64_t num_damaged = 0;          ///< newer saves that restore_latest() passed over
};

/// Copies one save into the live tensors and texts, whatever world size wrote it, and whether a
/// tensor is saved whole, in slices, or as the values that a mask keeps. No collective. Of an entry
/// with `held` only those elements are written, and only what holds them is read. All names, types
/// and shapes are checked before the first value is written; a key that the save lacks is an error
/// unless the entry has a value_if_missing. `num_threads` read; 0: as work_threads.h has it. Throws
/// Error(kConfig) where another model or optimizer saved it; kBadData, kInputMissing, kIo; after an
/// error in the middle (damaged values, a read that fails) each variable is wholly old or wholly
/// new, for it is written once it was read and verified.
RestoreReport restore(const std::string& prefix, const StateList& state, int num_threads = 0);

/// Collective: restore() on every rank, or the same Error on every rank.
RestoreReport restore_on_all(const std::string& prefix, const StateList& state,
                             dist::Communicator& control);

/// Collective. The newest save of DIR/prefix_name that every rank can restore, chosen by rank 0;
/// each that fails is passed over with a warning that names the defect. Nothing if the folder holds
/// no save (training may start at step 0). Throws Error(kBadData).everywhere() naming each defect
/// if saves exist and none can be restored: never start over; and faults that are none of the save
/// (kIo, and kConfig: the run has another model or optimizer).
std::optional<RestoreReport> restore_latest(const std::filesystem::path& dir,
                                            std::string_view prefix_name, const StateList& state,
                                            dist::Communicator& control);

/// The newest save whose index is sound and whose shards have the right sizes; nothing if there is
/// none. Defects of newer ones go to `defects`. No collective, for tools.
std::optional<SaveName> latest_complete(const std::filesystem::path& dir,
                                        std::string_view prefix_name,
                                        std::vector<std::string>* defects);

}  // namespace lockstep::checkpoint
