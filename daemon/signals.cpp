#include "daemon/signals.h"

#include <atomic>
#include <csignal>
#include <ctime>

#include <unistd.h>

namespace lockstep::daemon {
namespace {

// A signal handler can reach nothing but globals.
std::atomic<bool> g_stop_asked{false};
std::atomic<int64_t> g_end_asked_at_s{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

constexpr int64_t kPatience_s = 10;

int64_t steady_now_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1;  // never 0, which means "not asked"
}

extern "C" void ask_to_stop(int) { g_stop_asked.store(true, std::memory_order_relaxed); }

extern "C" void ask_to_end(int signal_number) {
  const int64_t now_s = steady_now_s();
  int64_t asked_at_s = 0;
  if (g_end_asked_at_s.compare_exchange_strong(asked_at_s, now_s)) return;
  if (now_s - asked_at_s > kPatience_s) ::_exit(128 + signal_number);
}

void install(int signal_number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal_number, &action, nullptr);
}

}  // namespace

Signals::Signals() {
  install(SIGUSR1, ask_to_stop);
  install(SIGTERM, ask_to_end);
  install(SIGINT, ask_to_end);
  install(SIGPIPE, SIG_IGN);
}

Signals::~Signals() {
  for (const int signal_number : {SIGUSR1, SIGTERM, SIGINT}) install(signal_number, SIG_DFL);
}

bool Signals::stop_asked() const { return g_stop_asked.load(std::memory_order_relaxed); }
bool Signals::end_asked() const { return g_end_asked_at_s.load(std::memory_order_relaxed) != 0; }

}  // namespace lockstep::daemon
