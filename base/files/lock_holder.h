#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

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
/// read and write it. Nobody else may read it, because read access suffices for a flock.
mode_t lock_mode(const std::filesystem::path& folder);

/// Opens a lock file with these flags of open(). With O_CREAT it gets the mode of lock_mode(), and
/// so does an own file of another mode. Returns -1 with errno set. Anything but a regular file (a
/// link, a pipe) is refused: ELOOP or EINVAL.
int open_lock_file(const std::filesystem::path& path, int flags);

/// Returns the present time in UTC to the second: 2025-11-21 19:24:30.
std::string utc_now();

}  // namespace lockstep::files
