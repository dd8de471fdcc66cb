#include "daemon/watch/watchdog.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.h"
#include "base/threads/deadline.h"
#include "base/threads/signals_blocked.h"
#include "base/trace/trace_span.h"

// The thread compares the loop's last sign of progress with the limits of the current phase.
namespace lockstep::daemon {
namespace {

constexpr double kMaxPeriod_s = 1;
// The files are best effort: a hanging disk must not delay the end of the ranks.
constexpr std::chrono::seconds kWritingLimit{2};

/// Returns the time between two looks: several looks fit into any limit.
double period_s(const WatchdogOptions& options) {
  return std::min(kMaxPeriod_s, options.shortest_s() / 8);
}

/// Phases that are recognized by an open span.
struct SpanOfPhase {
  std::string_view span;
  WatchPhase phase;
};
constexpr std::array kSpansOfPhases{SpanOfPhase{"masks", WatchPhase::kMaskUpdate},
                                    SpanOfPhase{"wait for a save", WatchPhase::kSave}};

WatchPhase phase_of_state(metrics::RunState state) {
  switch (state) {
    case metrics::RunState::kInitializing:
    case metrics::RunState::kRestoring:
      return WatchPhase::kInit;
    case metrics::RunState::kValidating:
      return WatchPhase::kEvaluation;
    case metrics::RunState::kSaving:
    case metrics::RunState::kDraining:
      return WatchPhase::kSave;
    default:
      return WatchPhase::kStep;
  }
}

}  // namespace

Watchdog::Watchdog(const WatchdogOptions& options, int rank, const RankEvents& events,
                   const metrics::Health& health, WatchdogActions actions)
    : rank_(rank),
      events_(events),
      health_(health),
      actions_(std::move(actions)),
      watched_thread_(::gettid()),
      options_(options) {
  trace::keep_recent();
  // The thread inherits the mask, so signals interrupt the main thread only.
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
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  const auto period = [this] { return std::chrono::duration<double>(period_s(options_)); };
  while (!wake_.wait_for(lock, period(), [this] { return stopping_; })) {
    const Clock::time_point now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - last).count();
    last = now;
    // A copy, so that no lock is held during look(), which may take long.
    const WatchdogOptions options = options_;
    lock.unlock();
    // At most two periods count per look. A longer gap means that this thread itself did not run.
    look(options, std::min(passed_s, 2 * period_s(options)));
    lock.lock();
  }
}

void Watchdog::set_limit(const std::string& key, double value_s) {
  const std::lock_guard lock(mutex_);
  options_.set(key, value_s);
}

void Watchdog::look(const WatchdogOptions& options, double watched_s) {
  const Clock::time_point turn = health_.last_turn();
  const metrics::RunState state = health_.state();
  const bool is_over = state == metrics::RunState::kFinished || state == metrics::RunState::kFailed;
  // Reading the spans is not cheap, so only if the loop has made no progress.
  const WatchPhase now = turn != last_turn_ || is_over ? last_phase_ : phase();
  if (turn != last_turn_ || now != last_phase_ || is_over) {
    last_turn_ = turn;
    last_phase_ = now;
    still_s_ = 0;
    is_told_ = false;
    return;
  }
  still_s_ += watched_s;
  if (still_s_ >= options.slow_s_of(now) && !is_told_) {
    is_told_ = true;
    log::warning("watchdog",
                 fmt::format("{:.1f} s without a turn of the loop: {}", still_s_, where()));
    events_.log_places();
  }
  const double hang_s = options.hang_s_of(now);
  if (hang_s == 0 || still_s_ < hang_s) return;
  const std::string what =
      fmt::format("rank {} hangs: {:.1f} s without a turn of the loop ({}): {}", rank_, still_s_,
                  options.hang_key_of(now), where());
  {  // both write files, and the disk may be what hangs
    const Deadline end(kWritingLimit, [&] { actions_.abort(what); });
    if (actions_.before_abort) actions_.before_abort(what);
    events_.write();
  }
  actions_.abort(what);
}

WatchPhase Watchdog::phase() const {
  for (const trace::RecentSpan& span : trace::recent())
    for (const SpanOfPhase& one : kSpansOfPhases)
      if (span.end_ns == 0 && span.thread == watched_thread_ && span.text() == one.span)
        return one.phase;
  return phase_of_state(health_.state());
}

std::string Watchdog::where() const {
  const trace::RecentSpan span = trace::open_span(trace::recent(), watched_thread_);
  const std::string_view at = span.text().empty() ? "between two spans" : span.text();
  return fmt::format("{} step(s) done here, state {}, it stands in '{}'{}", health_.num_steps(),
                     metrics::state_name(health_.state()), at,
                     span.detail >= 0 ? fmt::format(" {}", span.detail) : "");
}

}  // namespace lockstep::daemon
