#include "metrics/http/listen_address.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <boost/asio/ip/address.hpp>

#include "base/error.h"

namespace lockstep::metrics {
namespace {

using files::Descriptor;

std::optional<uint16_t> parse_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw Error(ExitCode::kCannotCreate, "control",
              fmt::format("cannot listen on the Unix socket {}: {}", path.string(), why));
}

/// Returns the address of a name; nullopt for a name that is empty or too long.
std::optional<sockaddr_un> address_of(const std::string& name) {
  sockaddr_un address{};
  if (name.empty() || name.size() >= sizeof(address.sun_path)) return std::nullopt;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  return address;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// Returns 0, or the error of connect().
int try_to_connect(const sockaddr_un& address) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(socket.get(), plain, sizeof(address)) == 0 ? 0 : errno;
}

/// Opens the socket's folder. Refuses one that everybody may write to: another user could replace
/// the socket.
Descriptor open_folder(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0)
    refuse(path, fmt::format("its folder {}: {}", folder.string(), std::strerror(errno)));
  struct stat facts {};
  if (::fstat(opened.get(), &facts) != 0) refuse(path, std::strerror(errno));
  // With the sticky bit, as in /tmp, only the owner can remove or rename the file.
  if ((facts.st_mode & S_IWOTH) != 0 && (facts.st_mode & S_ISVTX) == 0)
    refuse(path, fmt::format("its folder {} is writable by all users, who could replace the "
                             "socket; chmod o-w it, or choose another control.listen",
                             folder.string()));
  return opened;
}

/// Removes the socket file of a process that has ended.
void remove_stale(const std::filesystem::path& path, const sockaddr_un& address) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return;
  if (!S_ISSOCK(facts.st_mode))
    refuse(path,
           "the path exists and is not a socket; remove it, or choose another control.listen");
  // ECONNREFUSED: the file exists but no process listens.
  if (const int fault = try_to_connect(address); fault != ECONNREFUSED)
    refuse(path, fault == 0 || fault == EAGAIN
                     ? "another process listens on it; stop it, or choose another control.listen"
                     : std::strerror(fault));
  if (::unlink(path.c_str()) != 0) refuse(path, std::strerror(errno));
}

/// Locks the folder against another process that replaces the same stale file. Anyone who may open
/// the folder can hold the lock forever, so it is given up after a while.
void lock_for_a_while(const Descriptor& folder) {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPause{20};
  for (int i = 0; i < kTries && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0; ++i)
    std::this_thread::sleep_for(kPause);
}

}  // namespace

bool is_loopback(const std::string& host) {
  boost::system::error_code is_a_name;
  const auto address = boost::asio::ip::make_address(host, is_a_name);
  return is_a_name ? host == "localhost" : address.is_loopback();
}

bool is_reachable_by_others(const std::string& host) {
  boost::system::error_code is_a_name;
  (void)boost::asio::ip::make_address(host, is_a_name);
  return !is_a_name && !is_loopback(host);
}

std::string ListenAddress::text() const {
  const bool needs_brackets = host.find(':') != std::string::npos;
  return (needs_brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::optional<ListenAddress> parse_listen_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<uint16_t> port = parse_port(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon);
  // Brackets come in pairs and mark an IPv6 address; without them a colon ends the host.
  if (host.starts_with('[') != host.ends_with(']')) return std::nullopt;
  const bool in_brackets = host.size() > 2 && host.front() == '[';
  if (in_brackets) host = host.substr(1, host.size() - 2);
  if (host.find_first_of("[]/@ \t\r\n") != std::string_view::npos) return std::nullopt;
  if (!port || (!in_brackets && host.find(':') != std::string_view::npos)) return std::nullopt;
  // An empty host means all IPv4 interfaces.
  return ListenAddress{host.empty() ? "0.0.0.0" : std::string(host), *port};
}

ListenAddress address_of_local_rank(const ListenAddress& first, int local_rank) {
  if (first.port == 0) return first;
  const int port = int{first.port} + local_rank;
  // Port 0 lets the system choose.
  return {first.host, port > 65535 ? uint16_t{0} : static_cast<uint16_t>(port)};
}

std::string reachable_address(const ListenAddress& bound, const std::string& node) {
  const bool every_interface = bound.host == "0.0.0.0" || bound.host == "::";
  return ListenAddress{every_interface ? node : bound.host, bound.port}.text();
}

SocketName::SocketName(const std::filesystem::path& path) : text_(path.string()) {
  if (address_of(text_)) return;
  folder_ = Descriptor(::open(folder_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  // The path through the open folder is short, whatever the folder's own path.
  if (folder_.get() >= 0)
    text_ = fmt::format("/proc/self/fd/{}/{}", folder_.get(), path.filename().string());
}

bool is_listened_at(const std::filesystem::path& path) {
  const SocketName name(path);
  const std::optional<sockaddr_un> address = address_of(name.text());
  const int fault = address ? try_to_connect(*address) : ENAMETOOLONG;
  // EAGAIN: the listener's queue is full, so it exists.
  return fault == 0 || fault == EAGAIN;
}

UnixSocket::UnixSocket(std::filesystem::path path) : path_(std::move(path)) {
  const Descriptor folder = open_folder(path_);
  const SocketName name(path_);
  const std::optional<sockaddr_un> named = address_of(name.text());
  if (!named || path_.filename().string().size() > kMaxSocketNameBytes)
    refuse(path_, fmt::format("its name is too long; choose one of at most {} bytes",
                              kMaxSocketNameBytes));
  const sockaddr_un& address = *named;
  lock_for_a_while(folder);
  remove_stale(path_, address);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Set before bind(), so that the file never has wider permissions.
  if (socket.get() < 0 || ::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    refuse(path_, std::strerror(errno));
  struct stat facts {};
  if (::listen(socket.get(), SOMAXCONN) != 0 || ::lstat(path_.c_str(), &facts) != 0) {
    const int fault = errno;
    ::unlink(path_.c_str());
    refuse(path_, std::strerror(fault));
  }
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  descriptor_ = std::move(socket);
}

UnixSocket::~UnixSocket() {
  struct stat facts {};
  // Another process may have replaced the file; do not remove that one.
  if (::lstat(path_.c_str(), &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_)
    ::unlink(path_.c_str());
}

}  // namespace lockstep::metrics
