#pragma once

#include <cstddef>
#include <filesystem>

#include <sys/types.h>

namespace lockstep::metrics {

/// The longest path of a Unix socket: what `sun_path` holds beside its last zero.
inline constexpr size_t kMaxSocketPathBytes = 107;

/// Whether a process of this host listens at the path.
bool is_listened_at(const std::filesystem::path& path);

/// A listening Unix socket, for the user who made it and root alone (0600), and its file, which
/// goes with this object.
class UnixSocket {
 public:
  /// Replaces the file of a process that has ended. Throws Error(kCannotCreate) where the path is
  /// too long, its folder is missing or everybody may write into it, something else lies there, or
  /// a living process listens there.
  explicit UnixSocket(std::filesystem::path path);
  ~UnixSocket();
  UnixSocket(const UnixSocket&) = delete;
  UnixSocket& operator=(const UnixSocket&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The descriptor, once: it is the caller's to close from now on.
  int release();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  dev_t device_ = 0;  // of the file, so that another's of the same name stays
  ino_t inode_ = 0;
};

}  // namespace lockstep::metrics
