#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace lockstep::launch {

/// Program that this process has started, in its own process group. So a Ctrl-C of the terminal
/// reaches only this process. It receives SIGTERM if this process dies. Its stderr is a pipe, its
/// stdin is empty or a pipe, its stdout is ours. The thread that creates the object must live as
/// long as the object.
class Child {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// Runs `command`, searched in PATH like a shell does, with `variables` added to our environment.
  /// Throws Error(kUnavailable) if it cannot be started.
  enum class Input { kNone, kPipe };
  Child(const std::vector<std::string>& command, const Variables& variables,
        Input input = Input::kNone);
  ~Child();  // closes the pipes; does not end the program
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// Returns the descriptor of stderr, non-blocking; -1 once the stream has ended.
  int errors() const { return errors_; }
  /// Returns the bytes that are available now. At the end returns an empty text and sets errors()
  /// to -1.
  std::string read_errors();
  /// Writes to stdin, which must be a pipe, and closes it.
  void tell(std::string_view text);
  /// Sends a signal; does nothing if the program has ended.
  void signal(int signal_number) const;
  /// Returns the exit code if the program has ended: 128 + n if signal n ended it. Returns 137 if
  /// another part of this process has already collected the code.
  std::optional<int> poll();

 private:
  pid_t pid_ = -1;
  int errors_ = -1, input_ = -1;
  std::optional<int> code_;
};

}  // namespace lockstep::launch
