#include "launch/processes/child.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

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
    bool is_replaced = false;
    for (const auto& variable : variables) is_replaced = is_replaced || variable.first == name;
    if (!is_replaced) all.emplace_back(*entry);
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

Child::Child(const std::vector<std::string>& command, const Variables& variables, Input input) {
  std::vector<std::string> words = command, environment = environment_with(variables);
  const std::vector<char*> word_list = pointers(words), variable_list = pointers(environment);
  const auto [errors, errors_in] = make_pipe();
  const auto [status, status_in] = make_pipe();
  const auto [input_out, input_in] =
      input == Input::kPipe ? make_pipe()
                            : std::array{::open("/dev/null", O_RDONLY | O_CLOEXEC), -1};
  input_ = input_in;
  // O_CLOEXEC: a successful exec() closes the status pipe, so read() then returns 0.
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(word_list.data(), variable_list.data(), input_out, errors_in, status_in, parent);
  int fault = pid_ < 0 ? errno : 0;
  ::close(input_out);
  ::close(errors_in);
  ::close(status_in);
  errors_ = errors;
  // The pipe contains errno only if exec() failed.
  if (pid_ > 0 && ::read(status, &fault, sizeof fault) == sizeof fault) ::waitpid(pid_, nullptr, 0);
  ::close(status);
  if (fault != 0) {
    ::close(errors_);
    if (input_ >= 0) ::close(input_);
    throw Error(ExitCode::kUnavailable, "launch",
                fmt::format("cannot start {}: {}; is it installed, and in PATH?", command.front(),
                            std::strerror(fault)));
  }
  // The reader polls other descriptors too and must never block here.
  ::fcntl(errors_, F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  if (errors_ >= 0) ::close(errors_);
  if (input_ >= 0) ::close(input_);
}

void Child::tell(std::string_view text) {
  // If the child has just ended, nobody reads the text; poll() reports the end.
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  (void)!::write(input_, text.data(), text.size());
  std::signal(SIGPIPE, before);
  ::close(input_);
  input_ = -1;
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

}  // namespace lockstep::launch
