#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/types.h>

/// Processes that this one has started, directly or not, and their ends.
namespace lockstep::launch {

/// Program that this process has started, in its own process group. So a Ctrl-C of the terminal
/// reaches only this process. It receives SIGTERM if this process dies. Its stderr is a pipe, its
/// stdin is empty, its stdout is ours. The thread that creates the object must live as long as the
/// object.
class Child {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// Runs `command`, searched in PATH like a shell does, with `variables` added to our environment.
  /// Throws Error(kUnavailable) if it cannot be started.
  Child(const std::vector<std::string>& command, const Variables& variables);
  ~Child();  // closes the pipe; does not end the program
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// Returns the descriptor of stderr, non-blocking; -1 once the stream has ended.
  int errors() const { return errors_; }
  /// Returns the bytes that are available now. At the end returns an empty text and sets errors()
  /// to -1.
  std::string read_errors();
  /// Sends a signal; does nothing if the program has ended.
  void signal(int signal_number) const;
  /// Returns the exit code if the program has ended: 128 + n if signal n ended it. Returns 137 if
  /// another part of this process has already collected the code.
  std::optional<int> poll();

 private:
  pid_t pid_ = -1;
  int errors_ = -1;
  std::optional<int> code_;
};

/// Detects at once the end of processes that are not children of this one (pidfd_open). One thread.
class ProcessEnds {
 public:
  ProcessEnds() = default;
  ~ProcessEnds();
  ProcessEnds(const ProcessEnds&) = delete;
  ProcessEnds& operator=(const ProcessEnds&) = delete;

  /// Watches a further process. Ignores one that is already watched or has ended.
  void add(pid_t pid);
  /// Waits until one of `others` is ready, a watched process ends or the timeout expires. Processes
  /// that have ended are no longer watched.
  void wait(std::vector<pollfd> others, int timeout_ms);
  /// True if some processes were watched and none is left.
  bool are_all_over() const { return had_any_ && descriptors_.empty(); }

 private:
  std::map<pid_t, int> descriptors_;  ///< by process
  bool had_any_ = false;
};

inline constexpr double kKillPatience_s = 10;  ///< for kill_descendants()

/// Makes this process the parent of descendants whose own parents end (subreaper). So none of them
/// can escape from its view.
void adopt_orphans();

/// Collects the exit codes of ended children except `others`, whose owners collect them. Adopted
/// orphans would otherwise remain zombies.
void reap_orphans(const std::vector<pid_t>& others);

/// Returns all running descendants of this process, in no order. Without zombies.
std::vector<pid_t> descendants();

/// Returns the descendants that were started with this environment variable.
std::vector<pid_t> descendants_with(const char* variable);

/// Returns the parent of a process; nullopt if it has ended or is a zombie.
std::optional<pid_t> parent_of(pid_t pid);

/// True if the process catches, blocks or ignores this signal. False if the signal would end it, or
/// if it has ended.
bool hears_signal(pid_t pid, int signal_number);

/// Sends SIGKILL to all descendants until none is left. Returns false if some remain after
/// `patience_s`: a process that waits for a dead disk cannot be ended.
bool kill_descendants(double patience_s);

}  // namespace lockstep::launch
