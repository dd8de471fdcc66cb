#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/state_list.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// Points of a save, in order. Tests stop a save after each of them.
enum class SavePhase {
  kShardWritten,   ///< this rank's shard is on disk under its temporary name
  kEntriesAgreed,  ///< every rank knows that all of them are
  kIndexWritten,   ///< rank 0: the index is on disk under its temporary name
  kOldRemoved,     ///< rank 0: an older save of this number is gone
  kShardRenamed,   ///< this rank's shard has its final name
  kCommitted,      ///< rank 0: the index has its final name
  kStateWritten,   ///< rank 0: the state file names the save
  kDone,           ///< rank 0: surplus saves are gone
};

struct SaverOptions {
  std::string prefix = {};          ///< DIR/model.ckpt; the folder is made if it is not there
  int64_t keep_checkpoint_max = 5;  ///< -1 keeps all
  std::function<void(SavePhase)> at_phase =
      {};  ///< called after each phase on the rank it concerns; may be empty
};

/// The same on every rank, except `seconds`.
struct SaveResult {
  bool ok = false;
  std::string prefix;         ///< of the save, with its number
  int64_t bytes_written = 0;  ///< all files, all ranks
  double seconds = 0;
  std::string error;  ///< why it failed; empty if ok
};

/// Writes sharded saves and commits them as a set (docs/checkpoint_format.md, Order of a save).
///
/// Every rank passes the same keys, types and shapes; the values are those that every rank holds.
/// Each rank writes its part, rank 0 the rest.
class Saver {
 public:
  /// `control` must outlive the saver.
  Saver(SaverOptions options, dist::Communicator& control);

  /// Collective. Durable and committed when it returns with ok.
  ///
  /// A fault of the disk on any rank (no space, I/O, not allowed) gives ok = false on every rank
  /// and a warning: the files of this save are removed, the saves before are untouched, training
  /// may go on. (An older save of the same number is given up only once all bytes of the new one
  /// are on disk.) Other faults throw the same Error on every rank: kDisagree if the ranks' states
  /// differ in form, kConfig for a tensor that has no form in a save. kUnavailable if a peer is
  /// lost.
  SaveResult save(const StateList& state, int64_t step);

 private:
  SaverOptions options_;
  dist::Communicator& control_;
};

}  // namespace lockstep::checkpoint
