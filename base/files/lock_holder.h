#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::files {

/// Who holds a folder, as the lock file tells it.
struct LockHolder {
  int64_t pid = 0;
  std::string host;
  std::string since;        ///< UTC, for people
  std::string heartbeat;    ///< UTC, for people: the last sign of life
  int64_t num_beats = 0;    ///< grows with each of them
  std::string boot;         ///< of the kernel it runs under
  std::string pid_space;    ///< in which its pid counts (containers have their own)
  int64_t start_ticks = 0;  ///< when it started, so that a pid used again is told apart
  std::string token;        ///< random, one lock's own

  static LockHolder self();
  /// What this process reads from a lock file; nothing if it names nobody (given back, or half
  /// written).
  static std::optional<LockHolder> parse(std::string_view text);
  /// Equally long at every heartbeat.
  std::string file_text() const;
  /// "pid 12 on node3 since ..., last heartbeat ..."
  std::string shown() const;

  bool is_on_this_kernel() const;
  /// Whether its pid can be asked for here.
  bool can_be_asked() const;
  /// Only if can_be_asked().
  bool is_alive() const;
};

/// Mode of a lock file in a folder: read and write for its owner and for those who may write the
/// folder. Nobody else may read it, because a flock needs no more than that.
mode_t lock_mode(const std::filesystem::path& folder);

/// Opens a lock file with these flags of open(), made with that mode if O_CREAT is among them; an
/// own file of another mode is given it. Returns -1 with errno set; what is not a regular file (a
/// link, a pipe) is never opened: ELOOP or EINVAL.
int open_lock_file(const std::filesystem::path& path, int flags);

/// The time now, UTC, to the second: 2025-11-21 19:24:30.
std::string utc_now();

}  // namespace lockstep::files
