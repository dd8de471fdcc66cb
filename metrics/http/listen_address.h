#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "base/files/files.h"

/// Addresses and Unix sockets on which servers listen.
namespace lockstep::metrics {

/// Address that a server listens on: "127.0.0.1:9464", "[::1]:9464", "node7:9464", ":9464" (every
/// IPv4 interface). Port 0 means any free port.
struct ListenAddress {
  std::string host;  ///< without brackets
  uint16_t port = 0;

  /// Returns the address as it was written, an IPv6 host in brackets.
  std::string text() const;
};

/// True for a loopback address or localhost.
bool is_loopback(const std::string& host);

/// True if other hosts can reach this host's address. False for loopback addresses and for names,
/// whose address is known only after the look-up.
bool is_reachable_by_others(const std::string& host);

/// Parses an address. Returns nullopt if the text does not have that form. The host is not looked
/// up.
std::optional<ListenAddress> parse_listen_address(std::string_view text);

/// Returns the address of the local_rank-th process on a host: `local_rank` ports further. Beyond
/// 65535 it is any free port; port 0 stays 0.
ListenAddress address_of_local_rank(const ListenAddress& first, int local_rank);

/// Returns the address for others on the network: `node` replaces a host that means "every
/// interface".
std::string reachable_address(const ListenAddress& bound, const std::string& node);

/// Name of a Unix socket for bind() and connect(), which take at most 107 bytes. It is the path, or
/// a shorter path through an open descriptor of its folder. Valid in this process while this object
/// lives.
class SocketName {
 public:
  explicit SocketName(const std::filesystem::path& path);

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  files::Descriptor folder_;
};

/// Longest file name of a socket in bytes, in a folder of any length: 107 less "/proc/self/fd/N/".
inline constexpr size_t kMaxSocketNameBytes = 80;

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
  int release() { return descriptor_.release(); }

 private:
  std::filesystem::path path_;
  files::Descriptor descriptor_;
  dev_t device_ = 0;  // of the file, so that another process' file of this name is kept
  ino_t inode_ = 0;
};

}  // namespace lockstep::metrics
