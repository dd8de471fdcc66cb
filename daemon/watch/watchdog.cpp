#include "daemon/watch/watchdog.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/process/signals_blocked.h"
#include "base/trace_span.h"

namespace lockstep::daemon {
namespace {

constexpr double kMaxPeriod_s = 1;

/// Several looks before either limit.
double period_s(const WatchdogOptions& options) {
  const double limit_s =
      options.hang_s > 0 ? std::min(options.slow_s, options.hang_s) : options.slow_s;
  return std::min(kMaxPeriod_s, limit_s / 8);
}

}  // namespace

WatchdogOptions read_watchdog_options(ConfigReader in) {
  WatchdogOptions options;
  in.read(
      "slow_seconds", &options.slow_s, more_than(0),
      "a rank whose loop (step, validation batch, wait for a save) stands still for so long says "
      "where; one that others wait for so long is named by them");
  in.read(
      "hang_seconds", &options.hang_s, at_least(0),
      "a rank whose loop stands still for so long ends the run (79) and leaves its newest events "
      "in logs; 0: never. A rank that others wait for is given up after sync.timeout_s");
  in.done();
  return options;
}

Watchdog::Watchdog(const WatchdogOptions& options, int rank, std::filesystem::path logs,
                   const metrics::Health& health, WatchdogActions actions)
    : options_(options),
      rank_(rank),
      logs_(std::move(logs)),
      health_(health),
      actions_(std::move(actions)),
      watched_thread_(::gettid()) {
  trace::keep_recent();
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "lockstep-watch");
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  const double wanted_s = period_s(options_);
  const std::chrono::duration<double> period(wanted_s);
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return stopping_; })) {
    const Clock::time_point now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - last).count();
    last = now;
    lock.unlock();
    look(std::min(passed_s, 2 * wanted_s));
    lock.lock();
  }
}

void Watchdog::look(double watched_s) {
  const Clock::time_point turn = health_.last_turn();
  const metrics::RunState state = health_.state();
  if (turn != last_turn_ || state == metrics::RunState::kFinished ||
      state == metrics::RunState::kRestoring) {
    last_turn_ = turn;
    still_s_ = 0;
    is_told_ = false;
    return;
  }
  still_s_ += watched_s;
  if (still_s_ >= options_.slow_s && !is_told_) {
    is_told_ = true;
    log::warning("watchdog",
                 fmt::format("{:.1f} s without a turn of the loop: {}", still_s_, where()));
  }
  if (options_.hang_s == 0 || still_s_ < options_.hang_s) return;
  const std::string what =
      fmt::format("rank {} hangs: {:.1f} s without a turn of the loop (watchdog.hang_seconds): {}",
                  rank_, still_s_, where());
  if (actions_.before_abort) actions_.before_abort(what);
  write_events(logs_, rank_);
  actions_.abort(what);
}

std::string Watchdog::where() const {
  const trace::SpanRecord span = trace::open_span(watched_thread_);
  const std::string at = std::string_view(span.name).empty() ? "between two spans" : span.name;
  return fmt::format("{} step(s) done here, state {}, it stands in '{}'{}", health_.num_steps(),
                     metrics::state_name(health_.state()), at,
                     span.detail >= 0 ? fmt::format(" {}", span.detail) : "");
}

void write_events(const std::filesystem::path& logs, int rank) {
  nlohmann::json events = nlohmann::json::array();
  for (const trace::SpanRecord& span : trace::recent())
    events.push_back({{"name", span.name},
                      {"detail", span.detail},
                      {"thread", span.thread},
                      {"begin_ns", span.begin_ns},
                      {"end_ns", span.end_ns}});
  try {
    files::write_atomically(logs / fmt::format("lockstep-events-{}.json", rank),
                            events.dump() + "\n");
  } catch (const Error& fault) {
    log::warning("watchdog", fmt::format("the newest events cannot be written: {}", fault.what()));
  }
}

}  // namespace lockstep::daemon
