#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/files/lock_holder.h"

namespace lockstep::files {

/// Times of a FolderLock: waiting, heartbeat, takeover.
struct FolderLockTimes {
  double patience_s = 10;  ///< for a holder that is about to end, as after a kill and a restart
  double heartbeat_s = 5;  ///< between two heartbeats of the holder
  /// Time without a heartbeat after which a holder on another host counts as dead; longer than
  /// several heartbeats.
  double heartbeat_patience_s = 30;
  /// False treats the file system as one without locks (for tests).
  bool use_flock = true;
};

/// Exclusive claim of one process on a folder: a flock on FOLDER/.lock. The system releases it when
/// the process ends in any way. The file names the holder. It remains afterwards, empty after a
/// normal end.
///
/// Some file systems have no locks, or locks that other hosts do not see. So a thread also writes a
/// heartbeat into the file. A process that gets the lock while the file names a holder judges that
/// holder:
///   dead on this host        the folder is taken at once
///   alive on this host       refused (only without flock; otherwise the lock was not available)
///   on another host          its heartbeat is watched, without comparing clocks: if it moves,
///                            refused; if not for heartbeat_patience_s, taken, with a warning
///
/// The heartbeat never fails a run; a write fault is logged once. It also logs if another run has
/// taken the folder meanwhile, for instance after a pause of this process.
class FolderLock {
 public:
  /// Takes the folder. Throws Error(kCannotCreate) with the holder, its start and its last
  /// heartbeat if the folder stays taken.
  explicit FolderLock(const std::filesystem::path& folder, const FolderLockTimes& times = {});
  /// Releases the folder: the file is empty afterwards.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  /// Open lock file; closing it releases the lock.
  class File {
   public:
    explicit File(const std::filesystem::path& path);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int descriptor() const { return descriptor_; }
    /// Returns the holder that the file names now, even if another host has written it; nullopt if
    /// none. Throws Error(kIo) if it cannot be read, which says nothing about its holder.
    std::optional<LockHolder> holder() const;
    /// Replaces the file's text; false with errno set if that fails.
    bool write(const std::string& text) const;

   private:
    std::string text() const;

    std::filesystem::path path_;
    int descriptor_;
  };

  [[noreturn]] void refuse(const std::optional<LockHolder>& holder) const;
  bool take_flock();
  void judge_holder(bool is_locked);
  void watch_heartbeat(const LockHolder& holder);
  void note_self(bool is_locked);
  void beat_until_stopped();
  bool beat();
  bool is_ours() const;

  const std::filesystem::path folder_;
  const FolderLockTimes times_;
  File file_;
  LockHolder self_;
  bool said_ = false;  // a failed heartbeat was logged
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread heart_;
};

}  // namespace lockstep::files
