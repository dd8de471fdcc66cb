#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/store.h"
#include "checkpoint/save/shard_writer.h"

/// Commit of saves in an object store, which has no renames and no locks.
///
/// A shard is uploaded in parts, which no reader sees. Once all ranks have sent theirs, rank 0
/// writes the record PREFIX-NUMBER.commit. The store takes it only if no other program has written
/// one since the save began. So of two programs that save one number, one gets it. The record names
/// the parts of all shards and contains the index. Any program can then complete the save, since
/// each step may be done twice. The shards are completed, then the index is written, which is the
/// commit for readers. A killed save without a record leaves only parts, for abort_old_uploads().
namespace lockstep::checkpoint {

/// One save's files on one rank. The order of calls is that of the functions, but begin() may come
/// at any time before decide(). Those for rank 0 wait for all ranks' calls before them. Throws kIo
/// as base/files/store.h, also if another program has saved this number meanwhile.
class StoreCommit {
 public:
  /// `prefix` includes the number.
  StoreCommit(std::string prefix, int rank, int num_ranks);
  /// Ends the upload of a save that did not get to publish_shard(), unless leave_parts() was
  /// called.
  ~StoreCommit();
  StoreCommit(const StoreCommit&) = delete;
  StoreCommit& operator=(const StoreCommit&) = delete;

  /// Finds the checkpoint that this save replaces. Rank 0.
  void begin();
  /// Returns the sink for this rank's shard, which must not outlive this. It asks the store for an
  /// upload with the first bytes.
  std::unique_ptr<ShardSink> shard_sink(int64_t num_bytes);
  /// Returns what the record needs of this rank, once its shard was sent.
  std::string ticket() const;
  /// Writes the record, then removes the index of a replaced checkpoint. Rank 0, with all ranks'
  /// tickets. True if there was such an index.
  bool decide(const std::vector<std::string>& tickets, const std::string& index);
  void publish_shard();
  /// Rank 0.
  void publish_index();

  /// Removes the record and the index, if they are this save's. Rank 0, if the save failed.
  void take_back_record();
  /// Removes the shard, if it was published. After take_back_record().
  void take_back_shard();
  /// Leaves the uploaded parts in the store, since a record that could not be removed names them.
  void leave_parts() { upload_.reset(); }

 private:
  class PartSink;

  files::WritableStore& store_;
  const std::string prefix_, shard_, record_path_;
  std::optional<files::Upload> upload_;  ///< not completed yet
  std::vector<files::SentPart> parts_;
  int64_t num_bytes_ = 0;
  bool is_published_ = false;
  std::string replaced_record_;  ///< rank 0: its version; empty: none
  std::string record_, index_;   ///< rank 0
};

/// Throws unless this rank can write checkpoints of DIR/model.ckpt in a store. On rank 0, throws
/// Error(kConfig) too if the store ignores conditions of writes, so that two programs could both
/// save one number. Leaves nothing there.
void require_store(const std::string& prefix, int rank);

/// Completes the commits of killed saves in a folder of a store. A fault is logged as a warning,
/// for the folder can be read without it. Does nothing for a folder of this host.
void finish_commits(const std::filesystem::path& dir);

/// Ends uploads below `beginning` that began at least `min_age_s` seconds ago and that no record
/// names. A younger one may belong to a save in progress. Returns the paths.
std::vector<std::string> abort_old_uploads(const std::string& beginning, double min_age_s,
                                           bool dry_run);

}  // namespace lockstep::checkpoint
