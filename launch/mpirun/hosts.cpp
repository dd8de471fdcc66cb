#include "launch/mpirun/hosts.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/files.h"

// The same syntax as mpirun's --host and --hostfile, with stricter checks: a mistyped host must not
// start a run.
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
    refuse(entry, "holds what no host's name has");
  if (colon != std::string::npos) host.slots = slots_of(entry, entry.substr(colon + 1));
  return host;
}

std::vector<Host> hosts_in_file(const std::string& path) {
  std::vector<Host> hosts;
  std::istringstream lines(files::read(path, kMaxFileBytes));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, rest;
    if (!(words >> name)) continue;
    Host host = host_of(name);
    if (words >> slots) {
      if (!slots.starts_with("slots=") || (words >> rest)) refuse(line, "is no line of a host");
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
    std::istringstream entries(text);
    for (std::string entry; std::getline(entries, entry, ',');) hosts.push_back(host_of(entry));
  }
  if (hosts.empty()) refuse(text, "names no host");
  // A host named twice would look like two hosts to mpirun.
  for (auto host = hosts.begin(); host != hosts.end(); ++host)
    if (std::any_of(hosts.begin(), host, [&](const Host& o) { return o.name == host->name; }))
      refuse(host->name, "stands twice among the hosts");
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

}  // namespace lockstep::launch
