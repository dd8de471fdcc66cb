#include "daemon/control/watchdog.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/trace.h"

// Detection of hanging ranks and disks, from the spans of all ranks. Each process keeps its newest
// spans in shared memory. Ranks of a host can therefore read the spans of a process that hangs or
// is stopped.
namespace lockstep::daemon {
namespace {

// Limits the length of log lines in large worlds.
constexpr int kMaxToldRanks = 16;

using Spans = std::vector<trace::RecentSpan>;

std::string json_of(const Spans& spans) {
  nlohmann::json events = nlohmann::json::array();
  for (const trace::RecentSpan& span : spans)
    events.push_back({{"name", span.text()},
                      {"detail", span.detail},
                      {"thread", span.thread},
                      {"begin_ns", span.begin_ns},
                      {"end_ns", span.end_ns}});
  return events.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Formats "rank 1 in 'data' for 12.0 s". A process' first thread has the process' number.
std::string standing_of(size_t rank, const Spans& spans, int64_t pid) {
  const trace::RecentSpan span = trace::open_span(spans, pid);
  if (span.text().empty()) return fmt::format("rank {} between two spans", rank);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double passed_s =
      std::chrono::duration<double>(now - std::chrono::nanoseconds(span.begin_ns)).count();
  return fmt::format("rank {} in '{}'{} for {:.1f} s", rank, span.text(),
                     span.detail >= 0 ? fmt::format(" {}", span.detail) : "", passed_s);
}

template <typename Number>
Number number_of(std::string_view text) {
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

RankEvents::RankEvents(dist::Communicator& control, std::filesystem::path logs)
    : logs_(std::move(logs)),
      begin_(std::filesystem::file_time_type::clock::now()),
      own_rank_(static_cast<size_t>(control.rank())) {
  // Each rank needs the others' process numbers and tokens to find their span rings later.
  for (const std::string& text :
       dist::gather_texts(control, fmt::format("{} {}", ::getpid(), trace::recent_token()))) {
    const size_t blank = text.find(' ');
    ranks_.push_back({.pid = number_of<int64_t>(std::string_view(text).substr(0, blank)),
                      .token = number_of<uint64_t>(std::string_view(text).substr(blank + 1))});
  }
}

std::filesystem::path RankEvents::path_of(size_t rank) const {
  return logs_ / fmt::format("lockstep-events-{}.json", rank);
}

bool RankEvents::is_written(size_t rank) const {
  std::error_code fault;
  const auto written = std::filesystem::last_write_time(path_of(rank), fault);
  return !fault && written > begin_;
}

/// Writes the file. Ranks that give up at the same moment write the same files; one success is
/// enough.
void RankEvents::write_unless_another_does(size_t rank, const std::string& text) const {
  try {
    files::write_atomically(path_of(rank), text);
  } catch (const Error&) {
    if (!is_written(rank)) throw;
  }
}

class RankEvents::Places {
 public:
  void add(size_t rank, const std::optional<Spans>& spans, int64_t pid) {
    if (++num_told_ > kMaxToldRanks) return;
    std::string& told = spans ? standing_ : unreadable_;
    told += told.empty() ? "" : ", ";
    told += spans ? standing_of(rank, *spans, pid) : std::to_string(rank);
  }
  void tell() const {
    if (!standing_.empty()) log::info("watchdog", "other ranks: " + standing_);
    if (!unreadable_.empty())
      log::info(
          "watchdog",
          fmt::format(
              "events of rank(s) {} cannot be read on this host: they run elsewhere, or have ended",
              unreadable_));
  }

 private:
  std::string standing_, unreadable_;
  int num_told_ = 0;
};

void RankEvents::log_places() const {
  Places places;
  for (size_t rank = 0; rank < ranks_.size() && rank <= kMaxToldRanks; ++rank)
    if (rank != own_rank_)
      places.add(rank, trace::SpanRing::of_process(ranks_[rank].pid, ranks_[rank].token),
                 ranks_[rank].pid);
  places.tell();
}

void RankEvents::write() const {
  Places places;
  try {
    files::make_folders(logs_);  // a rank may hang before the run's folder is created
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const bool is_own = rank == own_rank_;
      if (!is_own && is_written(rank)) continue;
      const std::optional<Spans> spans =
          is_own ? trace::recent()
                 : trace::SpanRing::of_process(ranks_[rank].pid, ranks_[rank].token);
      if (spans) write_unless_another_does(rank, json_of(*spans));
      if (!is_own) places.add(rank, spans, ranks_[rank].pid);
    }
  } catch (const Error& fault) {
    log::warning("watchdog", fmt::format("the newest events cannot be written: {}", fault.what()));
  }
  places.tell();
}

// The thread compares the loop's last sign of progress with the limits of the current phase.

constexpr double kMaxPeriod_s = 1;
// The files are best effort: a hanging disk must not delay the end of the ranks.
constexpr std::chrono::seconds kWritingLimit{2};

/// Returns the time between two looks: several looks fit into any limit.
static double period_s(const WatchdogOptions& options) {
  return std::min(kMaxPeriod_s, options.shortest_s() / 8);
}

/// Phases that are recognized by an open span.
constexpr std::array kSpansOfPhases{
    std::pair(std::string_view("masks"), WatchPhase::kMaskUpdate),
    std::pair(std::string_view("wait for a save"), WatchPhase::kSave)};

static WatchPhase phase_of_state(metrics::RunState state) {
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
  thread_ = std::jthread([this](const std::stop_token& ends) { run(ends); });
  ::pthread_setname_np(thread_.native_handle(), "lockstep-watch");
}

void Watchdog::run(const std::stop_token& ends) {
  Clock::time_point last = Clock::now();
  // A copy, so that no lock is held during look(), which may take long.
  const auto current = [this] {
    const std::lock_guard lock(mutex_);
    return options_;
  };
  while (!stops_within(std::chrono::duration<double>(period_s(current())), ends)) {
    const Clock::time_point now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - last).count();
    last = now;
    const WatchdogOptions options = current();
    // At most two periods count per look. A longer gap means that this thread itself did not run.
    look(options, std::min(passed_s, 2 * period_s(options)));
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
    log::warning("watchdog", fmt::format("{:.1f} s without progress: {}", still_s_, where()));
    events_.log_places();
  }
  const double hang_s = options.hang_s_of(now);
  if (hang_s == 0 || still_s_ < hang_s) return;
  const std::string what = fmt::format("rank {} hangs: {:.1f} s without progress ({}): {}", rank_,
                                       still_s_, options.hang_key_of(now), where());
  {  // both write files, and the disk may be what hangs
    const Deadline end(kWritingLimit, [&] { actions_.abort(what); });
    if (actions_.before_abort) actions_.before_abort(what);
    events_.write();
  }
  actions_.abort(what);
}

WatchPhase Watchdog::phase() const {
  for (const trace::RecentSpan& span : trace::recent())
    for (const auto& [name, watched] : kSpansOfPhases)
      if (span.end_ns == 0 && span.thread == watched_thread_ && span.text() == name) return watched;
  return phase_of_state(health_.state());
}

std::string Watchdog::where() const {
  const trace::RecentSpan span = trace::open_span(trace::recent(), watched_thread_);
  const std::string_view at = span.text().empty() ? "between two spans" : span.text();
  return fmt::format("{} step(s) done on this rank, state {}, it is in '{}'{}", health_.num_steps(),
                     metrics::state_name(health_.state()), at,
                     span.detail >= 0 ? fmt::format(" {}", span.detail) : "");
}

// The main thread marks its disk accesses; this thread only compares times. It needs no cooperation
// of a main thread that hangs in the kernel.

constexpr std::chrono::milliseconds kDiskLookEvery{100};

DiskLimit::DiskLimit(const StopRequest& stop, double limit_s, std::function<void(int)> abort)
    : stop_(stop), limit_s_(limit_s), abort_(std::move(abort)) {
  const SignalsBlocked inherited_by_the_thread;
  thread_ = std::jthread([this](const std::stop_token& ends) { watch(ends); });
}

void DiskLimit::watch(const std::stop_token& ends) {
  using Clock = std::chrono::steady_clock;
  const auto limit =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s_));
  Clock::time_point ends_at = Clock::time_point::max();
  while (!stops_within(kDiskLookEvery, ends)) {
    const bool waits = is_used_ && (stop_.stop_asked() || stop_.end_asked());
    const Clock::time_point now = Clock::now();
    // The limit counts from the first look at which both are true: a stop request and disk access.
    ends_at = waits ? std::min(ends_at, now + limit) : Clock::time_point::max();
    if (now < ends_at) continue;
    log::error("serve", fmt::format("stop requested, and the disk of the queue does not respond "
                                    "within {} s: ending without it; no job is lost",
                                    limit_s_));
    abort_(static_cast<int>(ExitCode::kStopped));
  }
}

}  // namespace lockstep::daemon
