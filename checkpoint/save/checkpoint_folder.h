#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/checkpoint_files.h"
#include "dist/communicator.h"

/// Folder of a run's checkpoints: access by all ranks, space, lock, best and surplus checkpoints,
/// remains of killed saves. checkpoint/format/checkpoint_files.h lists and removes checkpoints.
namespace lockstep::checkpoint {

/// Throws Error(kConfig).everywhere() unless every rank sees what rank 0 writes into the folder.
/// All ranks write shards, so they need one shared place.
///
/// Rank 0 writes a random text and removes it afterwards. The other ranks look for it for up to
/// `patience_s` seconds. Network file systems may show a new file late. `host` is this rank's host
/// name. The message names the ranks and hosts that see another folder. The folder must exist on
/// rank 0. Throws rank 0's own write fault too (kCannotCreate, kIo). Collective; a single rank
/// writes nothing.
void require_shared(const std::filesystem::path& folder, const std::string& host,
                    dist::Communicator& ranks, double patience_s = 10);

/// Throws Error(kIo) if `num_bytes` do not fit into the free space that the file system reports. A
/// file system that reports a capacity of 0, as some user-space ones do, counts as having space.
void require_space(const std::filesystem::path& folder, int64_t num_bytes,
                   const std::filesystem::space_info& space);

/// Exclusive right to save under one prefix. So two programs neither use the same number nor remove
/// each other's files.
///
/// It is an exclusive flock on the file PREFIX.saving, held by rank 0 during one save. The system
/// releases it when the process ends, in any way. The file's text is a journal: the numbers of
/// checkpoints whose files are being written or removed. The file is deleted after a save that
/// ended normally. After a killed save it tells the next one which files are left over.
///
/// Users who share a folder share the file. Exactly those who may write the folder may read and
/// write it. A file that can only be read is locked too, then replaced by one of this user.
///
/// A file system without flock excludes nothing; a warning is logged once.
class SaveLock {
 public:
  /// Waits up to patience_s seconds while another program holds the lock. `prefix` is
  /// DIR/model.ckpt; the folder exists. Throws Error(kCannotCreate) with the holder's name on
  /// timeout; kIo and kCannotCreate as base/files/files.h.
  SaveLock(const std::string& prefix, double patience_s);
  /// Removes the file if nothing is left to clean up, and releases the lock.
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

  /// False on a file system without locks: another program may be saving now.
  bool is_held() const { return is_held_; }
  /// False also while the journal of another host is recent: its save may be in progress.
  bool excludes_others() const { return is_held_ && (may_go_ || !interrupted_.empty()); }
  /// Numbers of interrupted saves, from the journal when the lock was taken. Entries of another
  /// host from the last ten minutes are excluded, because locks may not reach that host.
  const std::set<int64_t>& interrupted() const { return interrupted_; }
  /// Replaces the journal by the numbers whose files may change from now on.
  void note(const std::set<int64_t>& numbers);
  /// Marks the journal as finished, so that the destructor removes the file.
  void done() { may_go_ = true; }

 private:
  bool take(double patience_s);
  bool is_still_the_file() const;
  std::set<int64_t> interrupted_in(const std::string& text) const;
  void reopen();
  bool open_once();
  void replace_by_own();

  std::string path_;
  int descriptor_ = -1;
  std::set<int64_t> interrupted_;
  bool may_write_ = false;
  bool is_held_ = false;
  bool may_go_ = false;
};

inline constexpr std::string_view kJournalSuffix = ".saving";

/// Best checkpoint of a folder by some metric, stored in the text file PREFIX.best, one line: "1200
/// eval.accuracy 0.9731". It protects the checkpoint from removal, and a resumed run compares
/// against it. Called by rank 0 alone.
struct BestSave {
  int64_t number = 0;
  std::string metric;
  double value = 0;
};

/// Writes the file atomically: a reader sees the old line or the new one. `prefix` is
/// DIR/model.ckpt.
void write_best(const std::string& prefix, const BestSave& best);
/// Reads the file; nullopt if it is missing or unreadable. Then nothing is protected; an unreadable
/// file is logged as a warning.
std::optional<BestSave> read_best(const std::string& prefix);

/// Rules for the checkpoints that a run keeps. Rank 0 alone selects and removes surplus ones.
struct KeepRules {
  int64_t keep_max = 5;         ///< newest checkpoints to keep; -1: all
  int64_t keep_every = 0;       ///< multiples of this number stay too and do not count; 0: none
  std::optional<int64_t> best;  ///< stays too and does not count
};

/// Returns the checkpoints to remove, lowest numbers first, never the one just written. Those with
/// a higher number, which a restore skipped, are left to the user and do not count. `saves` must be
/// in numeric order and of one prefix.
std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, const KeepRules& rules,
                                    int64_t just_written);

/// Returns final file names of saves that were killed while they replaced a prefix's only
/// checkpoint, each index after its shards. Such a save had all files on disk before it removed the
/// old checkpoint. So renames can finish it, and its files must stay. Only saves count of which all
/// files exist, and which the state file names or, unreadable, may name.
std::vector<std::string> unfinished_replacements(const std::filesystem::path& dir);

/// Finishes these saves, or warns: another program may be saving, or this one may not write. Called
/// by rank 0 alone, before it looks for checkpoints.
void finish_replacements(const std::filesystem::path& dir);

/// Removes the remains of interrupted saves of these numbers: temporary files, and shards without
/// an index. It finishes a replacement instead. `numbers` must come from this program's own journal
/// (SaveLock), since files of other numbers may be anybody's. `prefix` is DIR/model.ckpt. No save
/// under the prefix may be in progress.
void remove_remains(const std::string& prefix, const std::set<int64_t>& numbers);

/// Finishes the work that a killed save left after its commit. A run that resumes from that
/// checkpoint calls it, since it may never save again. It removes left-over temporary files and
/// shards without an index, and names the checkpoint `restored` in the state file.
///
/// Does nothing if no journal (SaveLock) names a killed save. Does nothing either if another
/// program is saving, or the file system has no locks. Checkpoints that the killed save was about
/// to remove stay in the journal, and the next save removes them.
///
/// `prefix` is DIR/model.ckpt. Called by rank 0 alone, before its first save. A fault of the disk
/// is only logged as a warning: the next save does the same work.
void tidy_interrupted(const std::string& prefix, int64_t restored);

}  // namespace lockstep::checkpoint
