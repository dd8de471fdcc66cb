#include "launch/stop_signals.h"

#include <array>
#include <atomic>
#include <string_view>

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"

// Stop signals to a supervisor. The handler of early ones writes one line and ends the process. It
// is safe because nothing has been started yet.
namespace lockstep::launch {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr std::string_view kText =
    "[launch] stop requested before any rank was started: run the same command again\n";

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

SignalQueue::SignalQueue(std::initializer_list<int> signals) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal_number : signals) {
    // Under nohup SIGHUP is ignored and must remain so.
    struct sigaction action {};
    ::sigaction(signal_number, nullptr, &action);
    if (signal_number != SIGHUP || action.sa_handler != SIG_IGN)
      ::sigaddset(&wanted, signal_number);
  }
  // signalfd() reads only blocked signals. Later threads inherit the mask.
  ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  descriptor_ = ::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
}

SignalQueue::~SignalQueue() {
  ::close(descriptor_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> all;
  signalfd_siginfo one{};
  while (::read(descriptor_, &one, sizeof one) == sizeof one)
    all.push_back(static_cast<int>(one.ssi_signo));
  return all;
}

}  // namespace lockstep::launch
