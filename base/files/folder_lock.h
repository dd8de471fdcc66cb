#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <sys/types.h>

#include "base/files/files.h"

/// Lock of a folder, and the lock file, which names the holder.
namespace lockstep::files {

/// Holder of a folder as written in the lock file.
struct LockHolder {
  int64_t pid = 0;
  std::string host;
  std::string since;        ///< UTC, for people
  std::string heartbeat;    ///< UTC, for people: the last one
  int64_t num_beats = 0;    ///< number of heartbeats so far
  std::string boot;         ///< boot id of the holder's kernel
  std::string pid_space;    ///< PID namespace of its pid (containers have their own)
  int64_t start_ticks = 0;  ///< its start time, which distinguishes a reused pid
  std::string token;        ///< random, different for every lock

  static LockHolder self();
  /// Parses a lock file; nullopt if it names no holder (released, or half written).
  static std::optional<LockHolder> parse(std::string_view text);
  /// Returns the text for the file, of equal length at every heartbeat.
  std::string file_text() const;
  /// Returns "pid 12 on node3 since ..., last heartbeat ...".
  std::string shown() const;

  bool is_on_this_kernel() const;
  /// True if its pid can be checked from here.
  bool can_be_asked() const;
  /// True if the holder is alive. Only if can_be_asked().
  bool is_alive() const;
};

/// Returns the mode of a lock file in a folder. Its owner, and those who may write the folder, may
/// read and write it. Other users may not read it, because read access suffices for a flock.
mode_t lock_mode(const std::filesystem::path& folder);

/// Opens a lock file with these flags of open(). With O_CREAT it gets the mode of lock_mode(), and
/// so does an own file of another mode. Returns -1 with errno set. Anything but a regular file (a
/// link, a pipe) is refused: ELOOP or EINVAL.
int open_lock_file(const std::filesystem::path& path, int flags);

/// Returns the present time in UTC to the second: 2025-11-21 19:24:30.
std::string utc_now();

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

    int descriptor() const { return descriptor_.get(); }
    /// Returns the holder that the file names now, even if another host has written it; nullopt if
    /// none. Throws Error(kIo) if it cannot be read, which says nothing about its holder.
    std::optional<LockHolder> holder() const;
    /// Replaces the file's text; false with errno set if that fails.
    bool write(const std::string& text) const;

   private:
    std::string text() const;

    std::filesystem::path path_;
    Descriptor descriptor_;
  };

  [[noreturn]] void refuse(const std::optional<LockHolder>& holder) const;
  bool take_flock();
  void judge_holder(bool is_locked);
  void watch_heartbeat(const LockHolder& holder);
  void note_self(bool is_locked);
  bool beat();
  bool is_ours() const;

  const std::filesystem::path folder_;
  const FolderLockTimes times_;
  File file_;
  LockHolder self_;
  bool said_ = false;  // a failed heartbeat was logged
  std::jthread heart_;
};

}  // namespace lockstep::files
