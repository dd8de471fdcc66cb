#include "daemon/control/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

// Signals that control a run, and the time limit for the save at its end. Handlers only count,
// because almost nothing is allowed inside a signal handler. The training loop polls the counters
// between steps.
namespace lockstep::daemon {
namespace {

// A signal handler can access only globals.
std::array<std::atomic<int64_t>, kCountedSignals.size()> g_num_received{};
std::atomic<int64_t> g_end_asked_at_ms{0}, g_int_at_ms{0};
std::atomic<uint32_t> g_stop_signals{0};  ///< bit i: kCountedSignals[i] means save and stop
static_assert(std::atomic<int64_t>::is_always_lock_free);

// An end request that is repeated after this time ends the process at once.
constexpr int64_t kPatience_ms = 10'000;
/// A Ctrl-C may arrive twice, from terminal and launcher.
constexpr int64_t kOneKeystroke_ms = 200;

int64_t steady_now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000 + 1;  // never 0, which means "not received"
}

size_t place_of(int signal_number) {
  const auto& all = kCountedSignals;
  return static_cast<size_t>(std::find(all.begin(), all.end(), signal_number) - all.begin());
}

uint32_t bit_of(int signal_number) { return uint32_t{1} << place_of(signal_number); }

bool means_stop(int signal_number) {
  return (g_stop_signals.load(std::memory_order_relaxed) & bit_of(signal_number)) != 0;
}

/// Ends the process if this signal came before, more than `after_ms` ago.
void end_if_again(std::atomic<int64_t>* first_ms, int64_t after_ms, int signal_number) {
  const int64_t now_ms = steady_now_ms();
  int64_t asked_at_ms = 0;
  // The first signal only records its time. compare_exchange: handlers may run in several threads.
  if (first_ms->compare_exchange_strong(asked_at_ms, now_ms)) return;
  if (now_ms - asked_at_ms > after_ms) ::_exit(128 + signal_number);
}

extern "C" void on_signal(int signal_number) {
  // Only async-signal-safe calls from here: atomics, clock_gettime() and _exit().
  g_num_received[place_of(signal_number)].fetch_add(1, std::memory_order_relaxed);
  if (signal_number == SIGINT) end_if_again(&g_int_at_ms, kOneKeystroke_ms, signal_number);
  if (signal_number == SIGUSR1 || signal_number == SIGUSR2 || means_stop(signal_number)) return;
  end_if_again(&g_end_asked_at_ms, kPatience_ms, signal_number);
}

void install(int signal_number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal_number, &action, nullptr);
}

bool is_ignored(int signal_number) {
  struct sigaction action {};
  ::sigaction(signal_number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals() {
  set_stop_signals({SIGUSR1});
  for (const int signal_number : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT})
    install(signal_number, on_signal);
  // Under nohup the loss of the terminal must not end the run.
  if (!is_ignored(SIGHUP)) install(SIGHUP, on_signal);
  install(SIGPIPE, SIG_IGN);
  sigset_t held;  // blocked since the program's first instruction (daemon/lockstepd_main.cpp)
  ::sigemptyset(&held);
  for (const int signal_number : kCountedSignals) ::sigaddset(&held, signal_number);
  ::pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

Signals::~Signals() {
  for (const int signal_number : kCountedSignals)
    install(signal_number,
            SIG_IGN);  // the exit code is final: a launcher's SIGTERM must not replace it
}

void Signals::set_stop_signals(const std::vector<int>& signals) {
  // Always: every launcher sends SIGUSR1 and does not know the others.
  uint32_t bits = bit_of(SIGUSR1);
  for (const int signal_number : signals) bits |= bit_of(signal_number);
  g_stop_signals.store(bits, std::memory_order_relaxed);
}

int64_t Signals::num_received(int signal_number) const {
  return g_num_received.at(place_of(signal_number)).load(std::memory_order_relaxed);
}

bool Signals::stop_asked() const {
  return std::any_of(kCountedSignals.begin(), kCountedSignals.end(),
                     [&](int one) { return means_stop(one) && num_received(one) > 0; });
}

bool Signals::end_asked() const {
  return std::any_of(kCountedSignals.begin(), kCountedSignals.end(), [&](int one) {
    return one != SIGUSR1 && one != SIGUSR2 && !means_stop(one) && num_received(one) > 0;
  });
}

int64_t Signals::num_saves_asked() const { return means_stop(SIGUSR2) ? 0 : num_received(SIGUSR2); }

// A shorter limit would abort saves that a slow disk still completes.
constexpr double kShortest_s = 5;

EndLimit::EndLimit(const StopRequest& requests, double grace_s,
                   std::function<void(const Error&)> abort)
    : requests_(requests), limit_s_(std::max(kShortest_s, grace_s)), abort_(std::move(abort)) {}

void EndLimit::set_grace(double grace_s) { limit_s_ = std::max(kShortest_s, grace_s); }

void EndLimit::look(int64_t save) {
  if (!requests_.end_asked()) return;
  if (!told_at_) told_at_ = Clock::now();
  if (std::chrono::duration<double>(Clock::now() - *told_at_).count() < limit_s_) return;
  const Error end(ExitCode::kStopped, "train",
                  fmt::format("stop requested, and the checkpoint of step {} is not on disk after "
                              "{} s (preemption.grace_seconds, at least {} s): the disk may hang; "
                              "ending without it, the last checkpoint is kept",
                              save, limit_s_, kShortest_s));
  if (abort_) abort_(end);
  throw Error(end);
}

}  // namespace lockstep::daemon
