#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

/// The right to save under one prefix: an exclusive flock on the file PREFIX.saving, held for the
/// length of one save by its rank 0, so that no two programs use one number or remove each other's
/// files. The system releases it when the process ends, however it ends. The file's text is a
/// journal: the numbers of the saves whose files are being written or removed. It is gone after a
/// save that ended in order; what a killed one leaves tells the next which files are left over.
///
/// Users who share a folder share the file: it may be read and written by whoever may write the
/// folder, and by nobody else. One that can only be read is locked all the same and then replaced
/// by one's own.
///
/// On a file system without flock nothing is excluded, and a warning says so once.
class SaveLock {
 public:
  /// Waits up to patience_s while another holds it. `prefix` is DIR/model.ckpt; the folder exists.
  /// Throws Error(kCannotCreate), naming the holder, if it stays held; kIo, kCannotCreate as
  /// base/files/files.h.
  SaveLock(const std::string& prefix, double patience_s);
  /// Removes the file if it may go, and releases the lock.
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

  /// False where the file system has no locks: another program may be saving now.
  bool is_held() const { return is_held_; }
  /// Content of the journal when the lock was taken: numbers of saves that were interrupted. None
  /// that another host noted within the last ten minutes, because locks may not reach it.
  const std::set<int64_t>& left_over() const { return left_over_; }
  /// Notes the numbers whose files may change from here on, instead of those noted before.
  void note(const std::set<int64_t>& numbers);
  /// Nothing is left to be tidied up: the file may go.
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
