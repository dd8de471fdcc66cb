// Messages as frames (tag, length, bytes) on non-blocking sockets, which each call polls.
#include "pytorch/gloo_ranks.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/files/files.h"

namespace lockstep::pytorch {
namespace {

using Clock = std::chrono::steady_clock;
using dist::cpu::Peer;
using files::Descriptor;

constexpr int kMaxAddresses = 8;
constexpr size_t kSecretBytes = 8;
// Data on one connection may arrive after the end of another. A rank that times out at the same
// moment then also names the rank that hangs, not one that has left because of it.
constexpr auto kGrace = std::chrono::milliseconds(200);

using Secret = std::array<std::byte, kSecretBytes>;

/// Addresses of a rank's listener. Sent between ranks in its memory layout.
struct Card {
  Secret hello{}, answer{};  ///< of a connection: its first bytes in each direction
  int32_t num_addresses = 0;
  int32_t reserved = 0;
  std::array<sockaddr_storage, kMaxAddresses> addresses{};
};

/// First bytes of a connection.
struct Hello {
  Secret secret{};
  int32_t rank = 0;
  int32_t reserved = 0;
};

/// Bytes before each message.
struct Frame {
  int32_t tag = 0;
  int32_t reserved = 0;
  int64_t num_bytes = 0;
};

[[noreturn]] void throw_unavailable(const std::string& text) {
  throw Error(ExitCode::kUnavailable, "pytorch", text);
}

std::string reason() { return std::strerror(errno); }

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_LOOPBACK);
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

/// True if `name` is in the list of GLOO_SOCKET_IFNAME, separated by commas, or that is not set.
bool is_chosen(std::string_view name) {
  const char* const chosen = std::getenv("GLOO_SOCKET_IFNAME");
  if (chosen == nullptr || *chosen == '\0') return true;
  return fmt::format(",{},", chosen).find(fmt::format(",{},", name)) != std::string::npos;
}

/// Returns the interface's address with the port; nullopt if other hosts cannot use it. Loopback
/// serves ranks of this host.
std::optional<sockaddr_storage> usable_address(const ifaddrs& interface, in_port_t port) {
  const bool is_up = (interface.ifa_flags & IFF_UP) != 0;
  if (!is_up || interface.ifa_addr == nullptr) return std::nullopt;
  if ((interface.ifa_flags & IFF_LOOPBACK) == 0 && !is_chosen(interface.ifa_name))
    return std::nullopt;
  sockaddr_storage address{};
  if (interface.ifa_addr->sa_family == AF_INET) {
    std::memcpy(&address, interface.ifa_addr, sizeof(sockaddr_in));
    reinterpret_cast<sockaddr_in&>(address).sin_port = port;
    return address;
  }
  if (interface.ifa_addr->sa_family != AF_INET6) return std::nullopt;
  std::memcpy(&address, interface.ifa_addr, sizeof(sockaddr_in6));
  auto& wide = reinterpret_cast<sockaddr_in6&>(address);
  wide.sin6_port = port;
  if (IN6_IS_ADDR_LINKLOCAL(&wide.sin6_addr)) return std::nullopt;  // numbers interfaces by host
  return address;
}

/// Fills the card with the addresses of this host. Port in network order.
void add_addresses(in_port_t port, Card* card) {
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) throw_unavailable("the addresses of this host: " + reason());
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(interfaces, &::freeifaddrs);
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next)
    if (const auto address = usable_address(*one, port))
      if (card->num_addresses < kMaxAddresses) card->addresses[card->num_addresses++] = *address;
}

/// Returns a socket that listens on a free port of all addresses; -1 if the system lacks the
/// family.
Descriptor listen_on(int family, in_port_t* port) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return socket;
  sockaddr_storage any{};  // port and address 0
  any.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const int off = 0;
  if (family == AF_INET6)
    static_cast<void>(::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)));
  auto* const address = reinterpret_cast<sockaddr*>(&any);
  if (::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), address, &size) != 0)
    return Descriptor();
  *port = family == AF_INET ? reinterpret_cast<const sockaddr_in&>(any).sin_port
                            : reinterpret_cast<const sockaddr_in6&>(any).sin6_port;
  return socket;
}

Secret make_secret() {
  std::random_device random;
  Secret secret{};
  for (std::byte& byte : secret) byte = static_cast<std::byte>(random());
  return secret;
}

bool are_on_one_host(const Peer& one, const Peer& other) {
  return one.boot_id == other.boot_id && one.node == other.node;
}

/// A receive that has begun.
struct Receive {
  uintptr_t id = 0;
  std::byte* bytes = nullptr;
  int64_t capacity_bytes = 0;
  int tag = 0;
};

/// A message that arrived before its receive.
struct Early {
  int tag = 0;
  std::vector<std::byte> bytes;
  bool is_complete = false;
  std::optional<Receive> receive;  ///< waits for the rest
};

struct Send {
  uintptr_t id = 0;
  Frame frame;
  const std::byte* bytes = nullptr;
  int64_t num_sent = 0;  ///< with the frame
};

/// A connection.
struct Link {
  enum class State {
    kConnecting,
    kAsking,    ///< said hello, waits for the answer
    kSending,   ///< carries messages to the peer
    kAccepted,  ///< waits for hello
    kReceiving  ///< carries messages from the peer
  };
  Descriptor socket;
  State state = State::kConnecting;
  int peer = -1;

  Hello hello;  ///< or the answer
  size_t num_greeted = 0;

  // of the message that is being received
  Frame frame;
  size_t num_framed = 0;
  std::optional<Receive> receive;  ///< else early
  Early* early = nullptr;
  std::byte* to = nullptr;
  int64_t num_left = 0;
  bool has_carried = false;  ///< a message has begun
};

/// Messages to and from one other rank.
struct Line {
  std::deque<Send> sends;
  std::deque<Receive> receives;  ///< without a message yet
  std::list<Early> early;
  Link* out = nullptr;
  bool is_wanted = false;  ///< connecting has begun
  std::string lost;        ///< why the peer can no longer be reached
  Clock::time_point lost_at;
};

class SocketTransport final : public dist::cpu::Transport {
 public:
  explicit SocketTransport(std::unique_ptr<dist::cpu::RankGroup> ranks)
      : ranks_(std::move(ranks)) {}

  int rank() const override { return ranks_->rank(); }
  int num_ranks() const override { return ranks_->num_ranks(); }
  std::vector<Peer> gather_peers() override;
  Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) override;
  Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) override;
  bool test_all(std::span<Request> requests) override;
  bool test(Request* request) override {
    return !pending_.contains(static_cast<uintptr_t>(*request));
  }

 private:
  struct Pending {
    int rank;
    bool is_receive;
  };

  Request add(Pending pending) {
    pending_.emplace(++last_id_, pending);
    return Request{last_id_};
  }
  void deliver(const Receive& receive, const Early& early);

  // Connections.
  void connect(int peer);
  void finish_connecting(Link& link);
  void accept_all();
  bool greet(Link& link, void* bytes, size_t num_bytes);
  void hear_answer(Link& link);
  void hear_hello(Link& link);
  void drop_attempt(Link& link, const std::string& why);
  void lose(int peer, const std::string& why);
  static void close(Link& link) { link.socket = Descriptor(); }

  // Messages.
  void progress();
  void handle(Link& link, int16_t events);
  int16_t events_of(const Link& link) const;
  void flush(Link& link);
  void read(Link& link);
  int64_t read_some(Link& link, void* bytes, int64_t num_bytes);
  void begin_message(Link& link);
  void end_message(Link& link);

  std::string name_of(int peer) const;
  [[noreturn]] void throw_lost(int peer) const;

  const std::unique_ptr<dist::cpu::RankGroup> ranks_;
  Descriptor listener_;
  std::vector<Card> cards_N_;
  std::vector<Peer> peers_N_;
  std::vector<Line> lines_N_;
  std::vector<std::unique_ptr<Link>> links_;
  std::map<uintptr_t, Pending> pending_;  ///< by request
  uintptr_t last_id_ = 0;
  std::vector<pollfd> polled_;  ///< a member, so that a steady step allocates nothing
};

std::vector<Peer> SocketTransport::gather_peers() {
  in_port_t port = 0;
  listener_ = listen_on(AF_INET6, &port);  // takes both families
  if (listener_.get() < 0) listener_ = listen_on(AF_INET, &port);
  if (listener_.get() < 0) throw_unavailable("no port to listen on: " + reason());
  Card own{.hello = make_secret(), .answer = make_secret()};
  add_addresses(port, &own);
  lines_N_ = std::vector<Line>(static_cast<size_t>(num_ranks()));
  peers_N_ = dist::cpu::gather_peers(*ranks_);
  cards_N_ = dist::cpu::gather(*ranks_, own);
  return peers_N_;
}

dist::cpu::Transport::Request SocketTransport::send(const std::byte* bytes, int64_t num_bytes,
                                                    int to, int tag) {
  check(to != rank(), "a message of a rank to itself");
  Line& line = lines_N_[to];
  const Request request = add({to, false});
  line.sends.push_back({.id = static_cast<uintptr_t>(request),
                        .frame = {.tag = tag, .num_bytes = num_bytes},
                        .bytes = bytes});
  if (line.out != nullptr && line.sends.size() == 1) flush(*line.out);
  if (!std::exchange(line.is_wanted, true)) connect(to);
  return request;
}

dist::cpu::Transport::Request SocketTransport::receive(std::byte* bytes, int64_t num_bytes,
                                                       int from, int tag) {
  check(from != rank(), "a message of a rank to itself");
  Line& line = lines_N_[from];
  const Request request = add({from, true});
  const Receive receive{static_cast<uintptr_t>(request), bytes, num_bytes, tag};
  const auto early = std::ranges::find_if(
      line.early, [tag](const Early& one) { return one.tag == tag && !one.receive; });
  if (early == line.early.end()) {
    line.receives.push_back(receive);
  } else if (early->is_complete) {
    deliver(receive, *early);
    line.early.erase(early);
  } else {
    early->receive = receive;
  }
  return request;
}

bool SocketTransport::test_all(std::span<Request> requests) {
  progress();
  bool are_done = true;
  for (const Request request : requests) {
    const auto found = pending_.find(static_cast<uintptr_t>(request));
    if (found == pending_.end()) continue;
    are_done = false;
    const Line& line = lines_N_[found->second.rank];
    if (!line.lost.empty() && Clock::now() - line.lost_at > kGrace) throw_lost(found->second.rank);
  }
  return are_done;
}

void SocketTransport::deliver(const Receive& receive, const Early& early) {
  check(static_cast<int64_t>(early.bytes.size()) <= receive.capacity_bytes, "a message too long");
  if (!early.bytes.empty()) std::memcpy(receive.bytes, early.bytes.data(), early.bytes.size());
  pending_.erase(receive.id);
}

/// Tries all addresses of the peer at once; the first answer wins.
void SocketTransport::connect(int peer) {
  const Card& card = cards_N_[peer];
  const bool is_here = are_on_one_host(peers_N_[peer], peers_N_[rank()]);
  std::string why = "it has no address that other hosts can use; set GLOO_SOCKET_IFNAME";
  bool has_attempts = false;
  for (int i = 0; i < card.num_addresses; ++i) {
    const sockaddr_storage& address = card.addresses[i];
    if (is_loopback(address) && !is_here) continue;
    Descriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const socklen_t size =
        address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (socket.get() < 0 ||
        (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 &&
         errno != EINPROGRESS)) {
      why = reason();
      continue;
    }
    auto link = std::make_unique<Link>();
    link->socket = std::move(socket);
    link->peer = peer;
    links_.push_back(std::move(link));
    has_attempts = true;
  }
  if (!has_attempts) lose(peer, why);
}

void SocketTransport::finish_connecting(Link& link) {
  int fault = 0;
  socklen_t size = sizeof(fault);
  static_cast<void>(::getsockopt(link.socket.get(), SOL_SOCKET, SO_ERROR, &fault, &size));
  if (fault != 0) return drop_attempt(link, std::strerror(fault));
  const int on = 1;
  static_cast<void>(::setsockopt(link.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
  const Hello hello{.secret = cards_N_[link.peer].hello, .rank = rank()};
  // The buffer of a new connection is empty and takes it whole.
  if (::send(link.socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello))
    return drop_attempt(link, reason());
  link.state = Link::State::kAsking;
}

void SocketTransport::accept_all() {
  while (true) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (errno == EMFILE || errno == ENFILE)
        throw_unavailable("no connection to another rank: " + reason() +
                          "; raise the limit (ulimit -n)");
      return;
    }
    auto link = std::make_unique<Link>();
    link->socket = std::move(socket);
    link->state = Link::State::kAccepted;
    links_.push_back(std::move(link));
  }
}

/// Receives the first bytes of a connection. True once all are there; closes it if it has ended.
bool SocketTransport::greet(Link& link, void* bytes, size_t num_bytes) {
  const ssize_t num = ::recv(link.socket.get(), static_cast<std::byte*>(bytes) + link.num_greeted,
                             num_bytes - link.num_greeted, 0);
  if (num < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (num <= 0) {
    close(link);
    return false;
  }
  link.num_greeted += static_cast<size_t>(num);
  return link.num_greeted == num_bytes;
}

void SocketTransport::hear_answer(Link& link) {
  Line& line = lines_N_[link.peer];
  const bool is_whole = greet(link, &link.hello.secret, sizeof(Secret));
  if (link.socket.get() < 0) return drop_attempt(link, "it closed the connection");
  if (!is_whole) return;
  if (link.hello.secret != cards_N_[link.peer].answer)
    return drop_attempt(link, "another program answered");
  for (const std::unique_ptr<Link>& other : links_) {
    const bool is_attempt =
        other->state == Link::State::kConnecting || other->state == Link::State::kAsking;
    if (other.get() != &link && other->peer == link.peer && is_attempt) close(*other);
  }
  link.state = Link::State::kSending;
  line.out = &link;
  flush(link);
}

void SocketTransport::hear_hello(Link& link) {
  if (!greet(link, &link.hello, sizeof(Hello))) return;
  const int peer = link.hello.rank;
  const Secret& answer = cards_N_[rank()].answer;
  const bool is_known = link.hello.secret == cards_N_[rank()].hello && peer >= 0 &&
                        peer < num_ranks() && peer != rank();
  if (!is_known || ::send(link.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL) !=
                       static_cast<ssize_t>(answer.size()))
    return close(link);
  link.peer = peer;
  link.state = Link::State::kReceiving;
}

/// Gives up an address of the peer, and the peer with the last one.
void SocketTransport::drop_attempt(Link& link, const std::string& why) {
  close(link);
  const bool has_others = std::ranges::any_of(links_, [&](const std::unique_ptr<Link>& other) {
    return other->peer == link.peer && other->socket.get() >= 0 &&
           (other->state == Link::State::kConnecting || other->state == Link::State::kAsking);
  });
  if (!has_others && lines_N_[link.peer].out == nullptr) lose(link.peer, why);
}

void SocketTransport::lose(int peer, const std::string& why) {
  Line& line = lines_N_[peer];
  if (!line.lost.empty()) return;
  line.lost = why;
  line.lost_at = Clock::now();
}

int16_t SocketTransport::events_of(const Link& link) const {
  switch (link.state) {
    case Link::State::kConnecting:
      return POLLOUT;
    case Link::State::kSending:  // the peer sends nothing here, and closes it when it ends
      return lines_N_[link.peer].sends.empty() ? POLLRDHUP : POLLOUT | POLLRDHUP;
    default:
      return POLLIN;
  }
}

void SocketTransport::progress() {
  polled_.clear();
  polled_.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  for (const std::unique_ptr<Link>& link : links_)
    polled_.push_back({.fd = link->socket.get(), .events = events_of(*link), .revents = 0});
  if (::poll(polled_.data(), polled_.size(), 0) <= 0) return;
  for (size_t i = 1; i < polled_.size(); ++i) {
    Link& link = *links_[i - 1];
    // Another link may have closed this one.
    if (polled_[i].revents != 0 && link.socket.get() >= 0) handle(link, polled_[i].revents);
  }
  if (polled_[0].revents != 0) accept_all();
  std::erase_if(links_, [](const std::unique_ptr<Link>& link) { return link->socket.get() < 0; });
}

void SocketTransport::handle(Link& link, int16_t events) {
  switch (link.state) {
    case Link::State::kConnecting:
      return finish_connecting(link);
    case Link::State::kAsking:
      return hear_answer(link);
    case Link::State::kAccepted:
      return hear_hello(link);
    case Link::State::kReceiving:
      return read(link);
    case Link::State::kSending:
      break;
  }
  if ((events & POLLOUT) != 0) flush(link);
  if ((events & (POLLRDHUP | POLLHUP | POLLERR)) == 0 || link.socket.get() < 0) return;
  lose(link.peer, "it closed the connection");
  lines_N_[link.peer].out = nullptr;
  close(link);
}

/// Writes as much as the connection takes.
void SocketTransport::flush(Link& link) {
  Line& line = lines_N_[link.peer];
  while (!line.sends.empty()) {
    Send& send = line.sends.front();
    const auto frame_left = std::max<int64_t>(0, int64_t{sizeof(Frame)} - send.num_sent);
    const int64_t num_data = send.num_sent + frame_left - int64_t{sizeof(Frame)};
    std::array<iovec, 2> parts{};
    parts[0] = {reinterpret_cast<std::byte*>(&send.frame) + sizeof(Frame) - frame_left,
                static_cast<size_t>(frame_left)};
    parts[1] = {const_cast<std::byte*>(send.bytes + num_data),
                static_cast<size_t>(send.frame.num_bytes - num_data)};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t num = ::sendmsg(link.socket.get(), &message, MSG_NOSIGNAL);
    if (num < 0 && errno == EINTR) continue;
    if (num < 0 && errno == EAGAIN) return;
    if (num < 0) {
      lose(link.peer, reason());
      line.out = nullptr;
      return close(link);
    }
    send.num_sent += num;
    if (send.num_sent < int64_t{sizeof(Frame)} + send.frame.num_bytes) continue;
    pending_.erase(send.id);
    line.sends.pop_front();
  }
}

/// Returns the number of bytes received; 0 if there are none now, or the connection has ended,
/// which is then closed.
int64_t SocketTransport::read_some(Link& link, void* bytes, int64_t num_bytes) {
  ssize_t num = 0;
  do {
    num = ::recv(link.socket.get(), bytes, static_cast<size_t>(num_bytes), 0);
  } while (num < 0 && errno == EINTR);
  if (num > 0) return num;
  if (num < 0 && errno == EAGAIN) return 0;
  // An address that the peer did not choose has carried nothing.
  if (link.has_carried) lose(link.peer, num == 0 ? "it closed the connection" : reason());
  close(link);
  return 0;
}

void SocketTransport::read(Link& link) {
  while (true) {
    if (link.num_framed < sizeof(Frame)) {
      const int64_t num =
          read_some(link, reinterpret_cast<std::byte*>(&link.frame) + link.num_framed,
                    static_cast<int64_t>(sizeof(Frame) - link.num_framed));
      if (num == 0) return;
      link.num_framed += static_cast<size_t>(num);
      if (link.num_framed < sizeof(Frame)) continue;
      begin_message(link);
    }
    while (link.num_left > 0) {
      const int64_t num = read_some(link, link.to, link.num_left);
      if (num == 0) return;
      link.to += num;
      link.num_left -= num;
    }
    end_message(link);
  }
}

/// Finds the receive of the message, or makes room for an early one.
void SocketTransport::begin_message(Link& link) {
  link.has_carried = true;
  link.num_left = link.frame.num_bytes;
  Line& line = lines_N_[link.peer];
  const auto found = std::ranges::find(line.receives, link.frame.tag, &Receive::tag);
  if (found == line.receives.end()) {
    link.early = &line.early.emplace_back();
    link.early->tag = link.frame.tag;
    link.early->bytes.resize(static_cast<size_t>(link.frame.num_bytes));
    link.to = link.early->bytes.data();
    return;
  }
  check(link.frame.num_bytes <= found->capacity_bytes, "a message too long");
  link.receive = *found;
  link.to = found->bytes;
  line.receives.erase(found);
}

void SocketTransport::end_message(Link& link) {
  link.num_framed = 0;
  if (link.receive) {
    pending_.erase(link.receive->id);
    link.receive.reset();
    return;
  }
  Early& early = *std::exchange(link.early, nullptr);
  early.is_complete = true;
  if (!early.receive) return;
  deliver(*early.receive, early);
  lines_N_[link.peer].early.remove_if([&](const Early& one) { return &one == &early; });
}

std::string SocketTransport::name_of(int peer) const {
  const Peer& one = peers_N_[peer];
  return fmt::format("rank {} (process {} on {})", one.world_rank, one.pid, one.node.data());
}

void SocketTransport::throw_lost(int peer) const {
  std::string text = fmt::format("{} has ended, or its host cannot be reached ({}): a peer is lost",
                                 name_of(peer), lines_N_[peer].lost);
  // The lost rank may have given up waiting for one that hangs.
  std::set<int> silent;
  for (const auto& [id, message] : pending_)
    if (message.is_receive && lines_N_[message.rank].lost.empty()) silent.insert(message.rank);
  for (const int other : silent) text += fmt::format("; no message yet from {}", name_of(other));
  throw_unavailable(text);
}

}  // namespace

std::unique_ptr<dist::cpu::Transport> make_socket_transport(
    std::unique_ptr<dist::cpu::RankGroup> ranks) {
  return std::make_unique<SocketTransport>(std::move(ranks));
}

}  // namespace lockstep::pytorch
