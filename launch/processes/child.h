#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace lockstep::launch {

/// A program that this process has started, in a process group of its own, so that a Ctrl-C of the
/// terminal reaches only this process. It is sent SIGTERM if this process dies. Its stderr comes
/// through a pipe; stdin is empty or a pipe of ours, stdout is ours. The thread that makes it must
/// live as long as it.
class Child {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// Runs `command` as a shell would find it, with `variables` added to our environment. Throws
  /// Error(kUnavailable) if it cannot be started.
  enum class Input { kNone, kPipe };
  Child(const std::vector<std::string>& command, const Variables& variables,
        Input input = Input::kNone);
  ~Child();  // closes the pipes; does not end the program
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// To be read from, without blocking; -1 once it has ended.
  int errors() const { return errors_; }
  /// What there is to read now; empty with errors() == -1 at the end.
  std::string read_errors();
  /// Writes into its stdin, which was asked for, and closes it.
  void tell(std::string_view text);
  /// Sends it a signal; nothing if it has ended.
  void signal(int signal_number) const;
  /// Whether it has ended: its exit code, 128 + n where signal n ended it; 137 where another part
  /// of this process has taken the code.
  std::optional<int> poll();

 private:
  pid_t pid_ = -1;
  int errors_ = -1, input_ = -1;
  std::optional<int> code_;
};

}  // namespace lockstep::launch
