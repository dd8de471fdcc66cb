#include "launch/processes/early_stop.h"

#include <array>
#include <atomic>
#include <csignal>
#include <string_view>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"

// The handler writes one line and ends the process. It is safe because nothing has been started
// yet.
namespace lockstep::launch {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr std::string_view kText =
    "[launch] told to stop before any rank was started: run the same command again\n";

std::atomic<bool> g_heard{false};  // a signal handler can access only globals
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_early_signal(int signal_number) {
  if (signal_number == SIGUSR2 || g_heard.load(std::memory_order_relaxed)) return;
  pollfd stderr_ready{STDERR_FILENO, POLLOUT, 0};  // a full pipe must not prevent the end
  if (::poll(&stderr_ready, 1, /*timeout=*/0) > 0)
    (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(static_cast<int>(ExitCode::kStopped));
}

/// Returns the signals that are not ignored, as SIGHUP is under nohup.
sigset_t wanted() {
  sigset_t all;
  ::sigemptyset(&all);
  for (const int signal_number : kSignals) {
    struct sigaction action {};
    ::sigaction(signal_number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) ::sigaddset(&all, signal_number);
  }
  return all;
}

}  // namespace

void hold_stop_signals() {
  const sigset_t all = wanted();
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
}

void end_at_stop_signals() {
  std::signal(SIGPIPE, SIG_IGN);  // the end of a log reader is no reason to end
  const sigset_t all = wanted();
  struct sigaction action {};
  action.sa_handler = on_early_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal_number : kSignals)
    if (::sigismember(&all, signal_number) == 1) ::sigaction(signal_number, &action, nullptr);
  // Signals that were held since hold_stop_signals() are delivered now.
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
}

// From now on the handler does nothing; the signals are blocked and read from a SignalQueue.
void stop_signals_are_heard() { g_heard.store(true, std::memory_order_relaxed); }

bool is_supervisor(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string_view command = argv[1];
  return command == "run" || command == "serve";
}

}  // namespace lockstep::launch
