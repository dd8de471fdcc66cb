#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

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
  /// Numbers of interrupted saves, from the journal when the lock was taken. Entries of another
  /// host from the last ten minutes are left out, because locks may not reach that host.
  const std::set<int64_t>& left_over() const { return left_over_; }
  /// Replaces the journal by the numbers whose files may change from now on.
  void note(const std::set<int64_t>& numbers);
  /// Marks the journal as finished, so that the destructor removes the file.
  void done() { may_go_ = true; }

 private:
  bool take(double patience_s);
  bool is_still_the_file() const;
  std::set<int64_t> left_over_in(const std::string& text) const;
  void reopen();
  bool open_once();
  void replace_by_own();

  std::string path_;
  int descriptor_ = -1;
  std::set<int64_t> left_over_;
  bool may_write_ = false;
  bool is_held_ = false;
  bool may_go_ = false;
};

inline constexpr std::string_view kJournalSuffix = ".saving";

}  // namespace lockstep::checkpoint
