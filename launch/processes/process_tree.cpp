#include "launch/processes/process_tree.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process/proc.h"

// Everything is read from /proc, so it also covers processes that were not started directly by this
// one.
namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds kKillTurn{5};

/// Returns the parent of each process, without zombies.
std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    const std::optional<pid_t> parent = pid > 0 ? parent_of(pid) : std::nullopt;
    if (parent) all[pid] = *parent;
  }
  return all;
}

}  // namespace

std::optional<pid_t> parent_of(pid_t pid) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat");
  // The name may contain any characters, so search for its closing bracket.
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(end_of_name + 1));
  char state = 'X';
  pid_t parent = 0;
  if (!(fields >> state >> parent) || state == 'Z' || state == 'X') return std::nullopt;
  return parent;
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

void reap_orphans(const std::vector<pid_t>& others) {
  siginfo_t ended{};
  // WNOWAIT only looks, so that codes of `others` remain for their owners.
  while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
    if (std::find(others.begin(), others.end(), ended.si_pid) != others.end()) return;
    ::waitpid(ended.si_pid, nullptr, WNOHANG);
    ended = {};
  }
}

std::vector<pid_t> descendants(pid_t spared) {
  const std::map<pid_t, pid_t> all = parents();
  const pid_t self = ::getpid();
  std::vector<pid_t> found;
  for (const auto& [pid, parent] : all) {
    pid_t above = pid == spared ? -1 : parent;
    // Bounded, because the tree may change while it is read.
    for (size_t i = 0; above != self && i < all.size(); ++i) {
      if (above == spared) break;
      const auto next = all.find(above);
      if (next == all.end()) break;
      above = next->second;
    }
    if (above == self) found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> descendants_with(const char* variable, pid_t spared) {
  const std::string wanted = std::string(variable) + "=";
  std::vector<pid_t> all = descendants(spared);
  std::erase_if(all, [&](pid_t pid) {
    std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
    for (std::string entry; std::getline(environment, entry, '\0');)
      if (entry.starts_with(wanted)) return false;
    return true;
  });
  return all;
}

bool hears_signal(pid_t pid, int signal_number) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  // Masks in hexadecimal, signal n at bit n - 1 (proc(5)).
  uint64_t masks = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:") || line.starts_with("SigIgn:") || line.starts_with("SigCgt:"))
      masks |= std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 16);
  return (masks >> (signal_number - 1) & 1) != 0;
}

bool kill_descendants(double patience_s, pid_t spared) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (true) {
    // In a loop: a process may fork between the look and the signal.
    const std::vector<pid_t> left = descendants(spared);
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    // Collects the zombies, which descendants() does not return.
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (left.empty()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kKillTurn);
  }
}

}  // namespace lockstep::launch
