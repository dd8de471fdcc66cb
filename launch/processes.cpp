#include "launch/processes.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/process.h"

// Child processes, ends of other processes, and descendants.
namespace lockstep::launch {
namespace {

/// Runs in the child between fork and exec, so only async-signal-safe calls are allowed. Reports
/// errno through `status`.
[[noreturn]] void become(char* const* words, char* const* environment, int input, int errors,
                         int status, pid_t parent) {
  ::setpgid(0, 0);
  // Sent when the parent's thread ends. The parent may have died already, so check it next.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(0);  // it died before prctl()
  ::dup2(input, STDIN_FILENO);
  ::dup2(errors, STDERR_FILENO);
  // The child must not inherit the supervisor's blocked signals.
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);  // otherwise the child would inherit that it is ignored
  ::execvpe(words[0], words, environment);
  const int fault = errno;
  (void)!::write(status, &fault, sizeof fault);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment_with(const Child::Variables& variables) {
  std::vector<std::string> all;
  // The given variables replace those of our environment.
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    if (std::ranges::count(variables, name, &Child::Variables::value_type::first) == 0)
      all.emplace_back(*entry);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(ExitCode::kUnavailable, "launch",
                fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  return ends;
}

}  // namespace

Child::Child(const std::vector<std::string>& command, const Variables& variables) {
  std::vector<std::string> words = command, environment = environment_with(variables);
  const std::vector<char*> word_list = pointers(words), variable_list = pointers(environment);
  const auto [errors, errors_in] = make_pipe();
  const auto [status, status_in] = make_pipe();
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  // O_CLOEXEC: a successful exec() closes the status pipe, so read() then returns 0.
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(word_list.data(), variable_list.data(), input, errors_in, status_in, parent);
  int fault = pid_ < 0 ? errno : 0;
  ::close(input);
  ::close(errors_in);
  ::close(status_in);
  errors_ = errors;
  // The pipe contains errno only if exec() failed.
  if (pid_ > 0 && ::read(status, &fault, sizeof fault) == sizeof fault) ::waitpid(pid_, nullptr, 0);
  ::close(status);
  if (fault != 0) {
    ::close(errors_);
    throw Error(ExitCode::kUnavailable, "launch",
                fmt::format("cannot start {}: {}; is it installed, and in PATH?", command.front(),
                            std::strerror(fault)));
  }
  // The reader polls other descriptors too and must never block here.
  ::fcntl(errors_, F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  if (errors_ >= 0) ::close(errors_);
}

std::string Child::read_errors() {
  std::string all;
  std::array<char, 16 * 1024> part;
  while (errors_ >= 0) {
    const ssize_t num_bytes = ::read(errors_, part.data(), part.size());
    if (num_bytes > 0) {
      all.append(part.data(), static_cast<size_t>(num_bytes));
    } else if (num_bytes < 0 && errno == EAGAIN) {
      // EAGAIN: no more bytes for now. End of file or another error closes the pipe.
      break;
    } else if (num_bytes == 0 || errno != EINTR) {
      ::close(errors_);
      errors_ = -1;
    }
  }
  return all;
}

void Child::signal(int signal_number) const {
  if (!code_) ::kill(pid_, signal_number);
}

std::optional<int> Child::poll() {
  int status = 0;
  const pid_t ended = code_ ? 0 : ::waitpid(pid_, &status, WNOHANG);
  if (ended == pid_) code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  // ECHILD: another waitpid() of this process has collected the code.
  if (ended < 0 && errno == ECHILD) code_ = 128 + SIGKILL;
  return code_;
}

ProcessEnds::~ProcessEnds() {
  for (const auto& [pid, descriptor] : descriptors_) ::close(descriptor);
}

void ProcessEnds::add(pid_t pid) {
  if (descriptors_.contains(pid)) return;
  const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return;  // the process has ended, or this kernel is older than 5.3
  descriptors_[pid] = descriptor;
  had_any_ = true;
}

void ProcessEnds::wait(std::vector<pollfd> others, int timeout_ms) {
  for (const auto& [pid, descriptor] : descriptors_) others.push_back({descriptor, POLLIN, 0});
  if (::poll(others.data(), others.size(), timeout_ms) <= 0) return;
  // The watched processes are the last entries, in the map's order.
  auto source = others.end() - static_cast<std::ptrdiff_t>(descriptors_.size());
  std::erase_if(descriptors_, [&source](const auto& each) {
    // Readable means that the process has ended.
    const bool has_ended = (source++)->revents != 0;
    if (has_ended) ::close(each.second);
    return has_ended;
  });
}

// Everything is read from /proc, so it also covers processes that were not started directly by this
// one.

constexpr std::chrono::milliseconds kKillTurn{5};

/// Returns the parent of each process, without zombies.
static std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    const std::optional<pid_t> parent = pid > 0 ? parent_of(pid) : std::nullopt;
    if (parent) all[pid] = *parent;
  }
  return all;
}

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

std::vector<pid_t> descendants() {
  const std::map<pid_t, pid_t> all = parents();
  const pid_t self = ::getpid();
  std::vector<pid_t> found;
  for (const auto& [pid, parent] : all) {
    pid_t above = parent;
    // Bounded, because the tree may change while it is read.
    for (size_t i = 0; above != self && i < all.size(); ++i) {
      const auto next = all.find(above);
      if (next == all.end()) break;
      above = next->second;
    }
    if (above == self) found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> descendants_with(const char* variable) {
  const std::string wanted = std::string(variable) + "=";
  std::vector<pid_t> all = descendants();
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

bool kill_descendants(double patience_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (true) {
    // In a loop: a process may fork between the look and the signal.
    const std::vector<pid_t> left = descendants();
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
