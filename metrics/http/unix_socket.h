#pragma once

#include <filesystem>
#include <string>

#include <sys/types.h>

namespace lockstep::metrics {

/// Name of a Unix socket for bind() and connect(), which take at most 107 bytes: its path, else one
/// through an open descriptor of its folder. Valid in this process, while this object lives.
class SocketName {
 public:
  explicit SocketName(const std::filesystem::path& path);
  ~SocketName();
  SocketName(const SocketName&) = delete;
  SocketName& operator=(const SocketName&) = delete;

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int folder_ = -1;
};

/// Whether a process of this host listens at the path.
bool is_listened_at(const std::filesystem::path& path);

/// A listening Unix socket, for the user who made it and root alone (0600), and its file, which
/// goes with this object.
class UnixSocket {
 public:
  /// Replaces the file of a process that has ended. Throws Error(kCannotCreate) where its folder is
  /// missing or everybody may write into it, something else lies there, or a living process listens
  /// there.
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
