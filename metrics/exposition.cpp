#include "metrics/exposition.h"

#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "metrics/live_page.h"
#include "metrics/series.h"

// State of the probes, pages of a process, and counters of the server's answers.
namespace lockstep::metrics {
namespace {

/// Level of a change to `state`. The other states have their own log lines: start, evaluation,
/// save, pause, end. A draining run may otherwise log nothing for a long time.
log::Level level_of(RunState state) {
  return state == RunState::kDraining ? log::Level::kInfo : log::Level::kDebug;
}

// Routes and probes of a run's pages. A probe is a list of checks; all must hold for status 200.

constexpr const char* kPlain = "text/plain; charset=utf-8";
constexpr const char* kJson = "application/json";
constexpr const char* kPages = "/ /metrics /livez /readyz /healthz (the last three with ?verbose)";

bool wants_details(std::string_view query) {
  return query == "verbose" || query.starts_with("verbose=");
}

/// Combinations that are likely, so that their counters start at 0.
constexpr std::array kExpected = {
    std::pair{kMetricsRoute, 200}, std::pair{kLiveRoute, 200},  std::pair{kLiveRoute, 503},
    std::pair{kReadyRoute, 200},   std::pair{kReadyRoute, 503}, std::pair{kHealthRoute, 200},
    std::pair{kHealthRoute, 503},  std::pair{kIndexRoute, 200}, std::pair{kLiveDataRoute, 200},
    std::pair{kTargetsRoute, 200}, std::pair{kOtherRoute, 400}, std::pair{kOtherRoute, 401},
    std::pair{kOtherRoute, 404},   std::pair{kOtherRoute, 405}, std::pair{kOtherRoute, 413},
    std::pair{kOtherRoute, 429},   std::pair{kOtherRoute, 431}, std::pair{kOtherRoute, 500},
};

/// Label values of the rejections.
constexpr std::array kReasons = {std::pair{Rejection::kLimit, "limit"},
                                 std::pair{Rejection::kTimeout, "timeout"},
                                 std::pair{Rejection::kHeader, "header"},
                                 std::pair{Rejection::kBody, "body"},
                                 std::pair{Rejection::kCredentials, "credentials"},
                                 std::pair{Rejection::kTls, "tls"}};

/// Returns the route under which durations are recorded. A histogram is seven series, so there are
/// few.
std::string_view timed_as(std::string_view route) {
  return route == kMetricsRoute ? route : kOtherRoute;
}

}  // namespace

void Health::note_state(RunState state) {
  // exchange(): a state that is set twice is logged once.
  const RunState before = state_.exchange(state, std::memory_order_relaxed);
  if (before == state || !tells_states_) return;
  const std::string line = fmt::format("{} (was {})", state_name(state), state_name(before));
  level_of(state) == log::Level::kInfo ? log::info("state", line) : log::debug("state", line);
}

bool means_process(std::string_view target, std::string_view id) {
  constexpr std::string_view kKey = "process=";
  size_t at = target.find('?');
  while (at != std::string_view::npos) {
    const std::string_view pair = target.substr(at + 1, target.find('&', at + 1) - at - 1);
    if (pair.starts_with(kKey)) return pair.substr(kKey.size()) == id;
    at = target.find('&', at + 1);
  }
  return true;
}

struct Exposition::Check {
  const char* name;
  bool holds;
  std::string detail;
};

Exposition::Exposition(ExpositionOptions options, const Health& health, PageMakers pages)
    : options_(options), health_(health), pages_(std::move(pages)) {}

void Exposition::share_live_with(const std::string& origin) {
  const std::lock_guard lock(mutex_);
  live_origin_ = origin;
}

void Exposition::set_targets(std::string json) {
  const std::lock_guard lock(mutex_);
  targets_ = std::move(json);
}

std::string Exposition::targets() const {
  const std::lock_guard lock(mutex_);
  return targets_;
}

HttpResponse Exposition::live_data() const {
  HttpResponse response{200, kJson, pages_.live(), std::string(kLiveDataRoute)};
  const std::lock_guard lock(mutex_);
  // Set once rank 0's address is known.
  response.readable_from = live_origin_;
  return response;
}

HttpResponse Exposition::handle(const HttpRequest& request, Health::Clock::time_point now) const {
  const std::string_view target = request.target;
  const size_t mark = target.find('?');
  const std::string_view path = target.substr(0, mark);
  const std::string_view query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  if (path == kMetricsRoute && !means_process(target, options_.process))
    return {404, kPlain, "another process used this address; its run has ended\n",
            std::string(path)};
  if (path == kMetricsRoute) {
    // Counted first: a scrape that begins after the last change then shows the final values.
    ++num_scrapes_;
    const PageFormat format = wanted_format(request.accept);
    return {200, content_type(format), pages_.metrics(format), std::string(path)};
  }
  if (path == kLiveRoute || path == kReadyRoute || path == kHealthRoute)
    return probe(path, query, now);
  if (path == kLiveDataRoute) return live_data();
  // Empty on all ranks but rank 0.
  if (path == kTargetsRoute && !targets().empty())
    return {200, kJson, targets(), std::string(path)};
  if (path == kIndexRoute)
    return {200, "text/html; charset=utf-8", std::string(live_page()), std::string(path)};
  return {404, kPlain, fmt::format("no such page; try {}\n", kPages), std::string(kOtherRoute)};
}

HttpResponse Exposition::probe(std::string_view route, std::string_view query,
                               Health::Clock::time_point now) const {
  std::vector<Check> checks;
  if (route == kReadyRoute) {
    checks.push_back({"world", health_.world_formed(),
                      health_.world_formed() ? "formed" : "not all ranks have joined"});
    checks.push_back(
        {"step", health_.num_steps() > 0, fmt::format("{} steps done", health_.num_steps())});
  } else {
    checks.push_back(turns(now));
  }
  if (route == kHealthRoute) {
    checks.push_back(steps(now));
    checks.push_back({"state", health_.state() != RunState::kFailed, state_name(health_.state())});
  }
  // Without ?verbose only the failed checks are shown.
  bool all_hold = true;
  std::string details, faults;
  for (const Check& check : checks) {
    all_hold = all_hold && check.holds;
    details += fmt::format("[{}] {}: {}\n", check.holds ? '+' : '-', check.name, check.detail);
    if (!check.holds) faults += fmt::format("{}: {}\n", check.name, check.detail);
  }
  if (wants_details(query)) faults = details;
  return {all_hold ? 200 : 503, kPlain, faults + (all_hold ? "ok\n" : "not ok\n"),
          std::string(route)};
}

Exposition::Check Exposition::turns(Health::Clock::time_point now) const {
  // No limit here: reading a checkpoint takes as long as the disk needs.
  if (health_.state() == RunState::kRestoring)
    return {"loop", true, "a checkpoint is being restored"};
  if (health_.state() == RunState::kFinished) return {"loop", true, "all steps are done"};
  const double age_s = health_.seconds_since_turn(now);
  return {"loop", age_s <= options_.turn_limit_s,
          fmt::format("last progress {:.1f} s ago, limit {} s", age_s, options_.turn_limit_s)};
}

Exposition::Check Exposition::steps(Health::Clock::time_point now) const {
  const double age_s = health_.seconds_since_step(now);
  const RunState state = health_.state();
  // Evaluations and saves may take longer than the limit of steps. Their progress is checked as
  // turns.
  const bool needs_no_step = state == RunState::kFinished || state == RunState::kRestoring ||
                             state == RunState::kPaused || state == RunState::kValidating ||
                             state == RunState::kSaving;
  return {"step", needs_no_step || age_s <= options_.step_limit_s,
          fmt::format("{} done, last {:.1f} s ago, limit {} s", health_.num_steps(), age_s,
                      options_.step_limit_s)};
}

struct HttpMetrics::Series {
  explicit Series(prometheus::Registry& r)
      : requests(counter_family(r, "lockstep_http_requests_total")),
        duration(histogram_family(r, "lockstep_http_request_duration_seconds")),
        rejections(counter_family(r, "lockstep_http_rejected_connections_total")),
        missing_ranks(gauge_family(r, "lockstep_http_missing_ranks").Add({})) {}

  prometheus::Counter& count_of(std::string_view route, int status) {
    // Routes and status codes come from this program, never from a client, so the series are
    // bounded.
    return requests.Add({{"handler", std::string(route)}, {"code", std::to_string(status)}});
  }
  prometheus::Histogram& duration_of(std::string_view route) {
    static const prometheus::Histogram::BucketBoundaries kBounds{0.001, 0.01, 0.1, 1};
    return duration.Add({{"handler", std::string(timed_as(route))}}, kBounds);
  }

  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Histogram>& duration;
  prometheus::Family<prometheus::Counter>& rejections;
  std::array<prometheus::Counter*, kReasons.size()> by_reason{};
  prometheus::Gauge& missing_ranks;
};

HttpMetrics::HttpMetrics(prometheus::Registry& registry)
    : series_(std::make_unique<Series>(registry)) {
  for (const auto& [route, status] : kExpected) {
    series_->count_of(route, status);
    series_->duration_of(route);
  }
  for (const auto& [reason, name] : kReasons)
    series_->by_reason[static_cast<size_t>(reason)] = &series_->rejections.Add({{"reason", name}});
}

HttpMetrics::~HttpMetrics() = default;

void HttpMetrics::on_answer(std::string_view route, int status, double duration_s) {
  series_->count_of(route, status).Increment();
  series_->duration_of(route).Observe(duration_s);
}

void HttpMetrics::set_missing_ranks(int num_ranks) { series_->missing_ranks.Set(num_ranks); }

void HttpMetrics::on_rejected(Rejection reason) {
  series_->by_reason[static_cast<size_t>(reason)]->Increment();
}

}  // namespace lockstep::metrics
