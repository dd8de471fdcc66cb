#include "metrics/exposition.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

namespace lockstep::metrics {
namespace {

constexpr const char* kPlain = "text/plain; charset=utf-8";
constexpr const char* kPages = "/metrics /livez /readyz /healthz (the last three with ?verbose)";

/// What stands in HTML text or an attribute.
std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

bool wants_details(std::string_view query) {
  return query == "verbose" || query.starts_with("verbose=");
}

}  // namespace

struct Exposition::Check {
  const char* name;
  bool holds;
  std::string detail;
};

Exposition::Exposition(ExpositionOptions options, const Health& health,
                       std::function<std::string()> page)
    : options_(std::move(options)), health_(health), page_(std::move(page)) {}

HttpResponse Exposition::handle(std::string_view target, Health::Clock::time_point now) const {
  const size_t mark = target.find('?');
  const std::string_view path = target.substr(0, mark);
  const std::string_view query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  if (path == kMetricsRoute)
    return {200, "text/plain; version=0.0.4; charset=utf-8", page_(), std::string(path)};
  if (path == kLiveRoute || path == kReadyRoute || path == kHealthRoute)
    return probe(path, query, now);
  if (path == kIndexRoute) return {200, "text/html; charset=utf-8", index(), std::string(path)};
  return {404, kPlain, fmt::format("there is no such page; try {}\n", kPages),
          std::string(kOtherRoute)};
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
  if (health_.state() == RunState::kRestoring) return {"loop", true, "a save is being restored"};
  const double age_s = health_.seconds_since_turn(now);
  return {"loop", age_s <= options_.turn_limit_s,
          fmt::format("turned {:.1f} s ago, limit {} s", age_s, options_.turn_limit_s)};
}

Exposition::Check Exposition::steps(Health::Clock::time_point now) const {
  const double age_s = health_.seconds_since_step(now);
  const RunState state = health_.state();
  const bool needs_no_step = state == RunState::kFinished || state == RunState::kRestoring;
  return {"step", needs_no_step || age_s <= options_.step_limit_s,
          fmt::format("{} done, last {:.1f} s ago, limit {} s", health_.num_steps(), age_s,
                      options_.step_limit_s)};
}

std::string Exposition::index() const {
  const std::string run = escape_html(options_.run_name);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Lockstep: "
      "{0}</title></head>\n"
      "<body><h1>Lockstep run {0}, rank {1}</h1>\n"
      "<ul><li><a href=\"/metrics\">/metrics</a> for Prometheus</li>\n"
      "<li><a href=\"/livez?verbose\">/livez</a> the loop turns</li>\n"
      "<li><a href=\"/readyz?verbose\">/readyz</a> the world has formed and a step is done</li>\n"
      "<li><a href=\"/healthz?verbose\">/healthz</a> steps go on</li></ul></body></html>\n",
      run, options_.rank);
}

}  // namespace lockstep::metrics
