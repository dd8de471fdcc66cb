#include "daemon/run/signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <ctime>

#include <unistd.h>

namespace lockstep::daemon {
namespace {

// A signal handler can reach nothing but globals.
std::array<std::atomic<int64_t>, train::kCountedSignals.size()> g_num_received{};
std::atomic<int64_t> g_end_asked_at_s{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

constexpr int64_t kPatience_s = 10;

int64_t steady_now_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1;  // never 0, which means "not asked"
}

size_t place_of(int signal_number) {
  const auto& all = train::kCountedSignals;
  return static_cast<size_t>(std::find(all.begin(), all.end(), signal_number) - all.begin());
}

extern "C" void count(int signal_number) {
  g_num_received[place_of(signal_number)].fetch_add(1, std::memory_order_relaxed);
}

extern "C" void ask_to_end(int signal_number) {
  count(signal_number);
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

bool is_ignored(int signal_number) {
  struct sigaction action {};
  ::sigaction(signal_number, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals() {
  for (const int signal_number : {SIGUSR1, SIGUSR2}) install(signal_number, count);
  for (const int signal_number : {SIGTERM, SIGINT}) install(signal_number, ask_to_end);
  if (!is_ignored(SIGHUP)) install(SIGHUP, ask_to_end);  // nohup: a lost terminal is no reason
  install(SIGPIPE, SIG_IGN);
}

Signals::~Signals() {
  for (const int signal_number : train::kCountedSignals)
    if (!is_ignored(signal_number)) install(signal_number, SIG_DFL);
}

int64_t Signals::num_received(int signal_number) const {
  return g_num_received.at(place_of(signal_number)).load(std::memory_order_relaxed);
}
bool Signals::stop_asked() const { return num_received(SIGUSR1) > 0; }
bool Signals::end_asked() const { return g_end_asked_at_s.load(std::memory_order_relaxed) != 0; }

}  // namespace lockstep::daemon
