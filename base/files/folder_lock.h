#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/files/lock_holder.h"

namespace lockstep::files {

/// How long a FolderLock waits, and how often it shows that its holder lives.
struct FolderLockTimes {
  double patience_s = 10;  ///< for a holder that is just ending, as after a kill and a restart
  double heartbeat_s = 5;  ///< between two signs of life of the holder
  /// A holder on another host whose heartbeat does not move for this long is taken for dead; longer
  /// than several heartbeats.
  double heartbeat_patience_s = 30;
  /// False treats the file system as one without locks; for tests.
  bool use_flock = true;
};

/// One process' claim on a folder: an exclusive flock on FOLDER/.lock, which the system releases
/// when the process ends, however it ends. The file says who holds it; it stays behind, empty when
/// it was given back.
///
/// Some file systems have no locks, or locks that other hosts do not see. So a thread also writes a
/// heartbeat into the file, and whoever gets the lock while the file still names a holder judges
/// that one:
///   dead on this host        the folder is taken at once
///   alive on this host       refused (only without flock: else the lock was not to be had)
///   on another host          its heartbeat is watched, not compared with a clock: if it moves,
///                            refused; if it does not for heartbeat_patience_s, taken, with a
///                            warning
///
/// The heartbeat never fails a run: what it cannot write is said once. It says so too when another
/// run has taken the folder meanwhile, as after a pause of this process.
class FolderLock {
 public:
  /// Throws Error(kCannotCreate) naming holder, since when, and its last heartbeat, if the folder
  /// stays taken.
  explicit FolderLock(const std::filesystem::path& folder, const FolderLockTimes& times = {});
  /// Gives the folder back: the file is empty afterwards.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  /// The open lock file; closing it gives the lock back.
  class File {
   public:
    explicit File(const std::filesystem::path& path);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int descriptor() const { return descriptor_; }
    /// The holder that it names now, also after another host wrote it; nothing if nobody. Throws
    /// Error(kIo) if it cannot be read: that says nothing of its holder.
    std::optional<LockHolder> holder() const;
    /// Replaces what it says; false with errno set if that fails.
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
  bool said_ = false;  // that the heartbeat cannot be written
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread heart_;
};

}  // namespace lockstep::files
