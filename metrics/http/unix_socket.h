#pragma once

#include <filesystem>
#include <string>

#include <sys/types.h>

namespace lockstep::metrics {

/// Name of a Unix socket for bind() and connect(), which take at most 107 bytes. It is the path, or
/// a shorter path through an open descriptor of its folder. Valid in this process while this object
/// lives.
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

/// True if a process of this host listens at the path.
bool is_listened_at(const std::filesystem::path& path);

/// Listening Unix socket, for the creating user and root only (0600). Its file is removed with this
/// object.
class UnixSocket {
 public:
  /// Replaces the file of a process that has ended. Throws Error(kCannotCreate) if the folder is
  /// missing or writable for everybody. Also if the path is not a socket or a living process
  /// listens there.
  explicit UnixSocket(std::filesystem::path path);
  ~UnixSocket();
  UnixSocket(const UnixSocket&) = delete;
  UnixSocket& operator=(const UnixSocket&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Returns the descriptor, once. The caller must close it.
  int release();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  dev_t device_ = 0;  // of the file, so that another process' file of this name is kept
  ino_t inode_ = 0;
};

}  // namespace lockstep::metrics
