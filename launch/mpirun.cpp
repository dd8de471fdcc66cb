#include "launch/mpirun.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include "base/error.h"
#include "base/exit_class.h"
#include "base/files/files.h"
#include "base/text.h"

// Hosts, command line and messages of mpirun. Lists of hosts have the same syntax as mpirun's
// --host and --hostfile, with stricter checks: a mistyped host must not start a run.
namespace lockstep::launch {
namespace {

// Limits of sane input, so that a wrong file is refused early.
constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr int kMaxSlots = 4096;

[[noreturn]] void refuse(const std::string& entry, const std::string& why) {
  throw Error(
      ExitCode::kUsage, "hosts",
      fmt::format("'{}' {}: hosts are given as n1:4,n2:4, or as @FILE of lines `n1 slots=4`", entry,
                  why));
}

int slots_of(const std::string& entry, std::string_view digits) {
  int slots = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), slots);
  if (fault != std::errc() || end != digits.data() + digits.size() || slots < 1 ||
      slots > kMaxSlots)
    refuse(entry, fmt::format("names no number of slots from 1 to {}", kMaxSlots));
  return slots;
}

bool is_of_name(char c) {
  const std::string_view others = ".-_:[]%";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         others.find(c) != std::string_view::npos;
}

/// Parses one word, "n1" or "n1:4"; an IPv6 address is in brackets.
Host host_of(const std::string& entry) {
  // The colons of an IPv6 address are inside its brackets, so search after them.
  const size_t colon = entry.find(':', entry.starts_with('[') ? entry.find(']') : 0);
  Host host{.name = entry.substr(0, colon)};
  if (host.name.empty() || host.name.starts_with('-')) refuse(entry, "names no host");
  if (!std::all_of(host.name.begin(), host.name.end(), is_of_name))
    refuse(entry, "contains a character that host names cannot have");
  if (colon != std::string::npos) host.slots = slots_of(entry, entry.substr(colon + 1));
  return host;
}

std::vector<Host> hosts_in_file(const std::string& path) {
  std::vector<Host> hosts;
  for (const std::string& line : split(files::read(path, kMaxFileBytes))) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, rest;
    if (!(words >> name)) continue;
    Host host = host_of(name);
    if (words >> slots) {
      if (!slots.starts_with("slots=") || (words >> rest)) refuse(line, "is not a line of a host");
      host.slots = slots_of(line, slots.substr(6));
    }
    hosts.push_back(host);
  }
  return hosts;
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  if (text.starts_with('@')) {
    hosts = hosts_in_file(text.substr(1));
  } else {
    for (const std::string& entry : split(text, ',')) hosts.push_back(host_of(entry));
  }
  if (hosts.empty()) refuse(text, "names no host");
  // A host named twice would look like two hosts to mpirun.
  for (auto host = hosts.begin(); host != hosts.end(); ++host)
    if (std::any_of(hosts.begin(), host, [&](const Host& o) { return o.name == host->name; }))
      refuse(host->name, "is listed twice among the hosts");
  return hosts;
}

int num_slots(const std::vector<Host>& hosts) {
  int sum = 0;
  for (const Host& host : hosts) sum += host.slots;
  return sum;
}

std::string host_list(const std::vector<Host>& hosts) {
  std::vector<std::string> entries;
  for (const Host& host : hosts) entries.push_back(fmt::format("{}:{}", host.name, host.slots));
  return fmt::format("{}", fmt::join(entries, ","));
}

// Compares names by their addresses. A name that is unknown here is assumed to be a different host.

constexpr const char* kHere = "this host";

/// Formats an address without the scope of a link: fe80::1%eth0 becomes fe80::1.
static std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_v4 = address->sa_family == AF_INET;
  const void* bytes =
      is_v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
            : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr ? ""
                                                                                     : text.data();
}

static bool has_address(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

static std::set<std::string> addresses_of_this_host() {
  std::set<std::string> all;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return all;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next)
    if (has_address(each->ifa_addr)) all.insert(text_of(each->ifa_addr));
  return all;
}

/// Removes the brackets of an IPv6 address.
static std::string bare(const std::string& name) {
  return name.starts_with('[') && name.ends_with(']') ? name.substr(1, name.size() - 2) : name;
}

std::vector<std::string> addresses_of(const std::string& name) {
  const addrinfo hints{.ai_flags = 0, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* first = nullptr;
  // An unknown name has no addresses here; mpirun reports it.
  if (::getaddrinfo(bare(name).c_str(), nullptr, &hints, &first) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, ::freeaddrinfo);
  static const std::set<std::string> here = addresses_of_this_host();
  std::set<std::string> found;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    if (!has_address(each->ai_addr)) continue;
    const std::string text = text_of(each->ai_addr);
    // All addresses of this host count as one, also 127.0.1.1, which no interface has.
    const bool is_loopback = text.starts_with("127.") || text == "::1";
    found.insert(is_loopback || here.contains(text) ? kHere : text);
  }
  return {found.begin(), found.end()};
}

void require_different_hosts(
    const std::vector<Host>& hosts,
    const std::function<std::vector<std::string>(const std::string&)>& addresses) {
  std::map<std::string, const Host*> owners;  // by address
  for (const Host& host : hosts) {
    for (const std::string& address : addresses(host.name)) {
      const auto [owner, is_new] = owners.try_emplace(address, &host);
      if (is_new || owner->second == &host) continue;
      const Host& other = *owner->second;
      throw Error(
          ExitCode::kUsage, "hosts",
          fmt::format("'{}' and '{}' are names of one host ({}): name it once, with the "
                      "slots of both, as {}:{}",
                      other.name, host.name, address, other.name, other.slots + host.slots));
    }
  }
}

// launch/README.md explains each argument.

/// Returns the arguments of one group of processes: mpirun wants all of them in each.
static std::vector<std::string> group(const MpirunOptions& options, int num_processes,
                                      const std::vector<Host>& hosts) {
  std::vector<std::string> line{"-n", std::to_string(num_processes)};
  const auto add = [&line](std::initializer_list<std::string> words) {
    line.insert(line.end(), words);
  };
  add({"--bind-to", "none", "--oversubscribe"});
  add({"--mca", "mpi_yield_when_idle", "1"});
  add({"--mca", "btl_vader_single_copy_mechanism", "none"});
  // A lost rank ends no other; quiet: mpirun would report the end of such a run as a fault.
  if (options.num_spares > 0) add({"--mca", "orte_abort_on_non_zero_status", "0", "--quiet"});
  if (options.is_root) add({"--allow-run-as-root"});
  if (!hosts.empty()) {
    // Only ssh to other hosts loses the environment; local ranks inherit it.
    add({"--host", host_list(hosts)});
    for (const std::string& name : options.exported) add({"-x", name});
  }
  // The user's own arguments for mpirun follow ours.
  line.insert(line.end(), options.more.begin(), options.more.end());
  line.push_back(options.program.front());
  if (options.num_spares > 0) add({"--spares", std::to_string(options.num_spares)});
  line.insert(line.end(), options.program.begin() + 1, options.program.end());
  return line;
}

std::vector<std::string> mpirun_command(const MpirunOptions& options) {
  const auto num_hosts = static_cast<int>(options.hosts.size());
  // On one host the spares are the last processes of the only group.
  std::vector<std::string> line =
      group(options, options.num_ranks + (num_hosts == 0 ? options.num_spares : 0), options.hosts);
  line.insert(line.begin(), "mpirun");
  for (int spare = 0; num_hosts > 0 && spare < options.num_spares; ++spare) {
    const Host& host = options.hosts[static_cast<size_t>(num_hosts - 1 - spare % num_hosts)];
    const std::vector<std::string> more = group(options, 1, {{host.name, 1}});
    line.push_back(":");
    line.insert(line.end(), more.begin(), more.end());
  }
  return line;
}

constexpr size_t kMaxLineBytes = 4096;  ///< the rest of a longer line is ignored

/// Returns the word after `mark`, up to a blank, a colon or a dot at the end. Empty without the
/// mark.
static std::string word_behind(std::string_view line, std::string_view mark) {
  const size_t place = line.find(mark);
  if (place == std::string_view::npos) return "";
  const std::string_view rest = line.substr(place + mark.size());
  std::string word(rest.substr(0, rest.find_first_of(" :\t\r")));
  if (word.ends_with('.')) word.pop_back();
  return word;
}

void MpirunMessages::read(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n') {
      read_line(line_);
      line_.clear();
    } else if (line_.size() < kMaxLineBytes) {
      line_ += c;
    }
  }
}

void MpirunMessages::read_line(std::string_view line) {
  const auto note = [](std::set<std::string>* hosts, const std::string& host) {
    if (!host.empty()) hosts->insert(host);
  };
  // Message of mpirun: "mpirun noticed that process rank 1 with PID 12 on node n2 exited on signal
  // 9 (Killed)."
  if (line.starts_with("mpirun noticed that process rank ") &&
      line.find("exited on signal") != std::string_view::npos)
    note(&killed_on_, word_behind(line, " on node "));
  // Message of mpirun: "  Remote daemon: [[64028,0],1] on node n2". Output of ranks does not begin
  // like this.
  if (line.starts_with("  Remote daemon: [[")) note(&lost_, word_behind(line, " on node "));
  // Not only at the begin: mpirun may put a tag before it, or an unfinished line of another rank.
  const size_t told = line.find(kExitCodeLine);
  if (!exit_code_ && told != std::string_view::npos)
    exit_code_ = std::atoi(std::string(line.substr(told + kExitCodeLine.size())).c_str());
  constexpr std::array<std::string_view, 2> kOfSsh{"ssh: connect to host ",
                                                   "ssh: Could not resolve hostname "};
  for (const std::string_view mark : kOfSsh)
    if (line.starts_with(mark)) note(&lost_, word_behind(line, mark));
}

}  // namespace lockstep::launch
