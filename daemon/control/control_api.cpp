#include "daemon/control/control_api.h"

#include <array>
#include <filesystem>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/yaml/config_reader.h"
#include "daemon/config/overrides.h"
#include "daemon/control/settable.h"

extern "C" const char lockstep_openapi[];

// Control API of a run, and the log of its calls. Calls run on the HTTP server's thread, so they
// only read current values and record requests. The training loop acts on the requests.
namespace lockstep::daemon {
namespace {

using metrics::HttpResponse;

/// Longest wait for the list of checkpoints; after that the status uses the previous list.
constexpr std::chrono::milliseconds kListing{200};

constexpr const char* kJsonType = "application/json";

HttpResponse answer(int status, const nlohmann::json& json, std::string_view route) {
  return {status, kJsonType, json.dump() + "\n", std::string(route)};
}

HttpResponse refuse(int status, const std::string& why, std::string_view route) {
  return answer(status, {{"error", why}}, route);
}

HttpResponse unknown() {
  return refuse(404, "unknown call; GET /control/openapi.json lists all", "other");
}

}  // namespace

ControlApi::ControlApi(const RunConfig& config, const dist::ProcessInfo& process,
                       Requests& requests, const metrics::Health& health)
    : config_(config),
      folder_(std::filesystem::absolute(config.run.project_dir).string()),
      process_(process),
      requests_(requests),
      health_(health),
      saves_("saves", [folder = config.checkpoint.folder(config.run.project()),
                       prefix = config.checkpoint.prefix] {
        return checkpoint::find_saves(folder, prefix);
      }) {}

HttpResponse ControlApi::get(std::string_view target) const {
  const std::string_view route = target.substr(0, target.find('?'));
  if (route == "/control/status") return {200, kJsonType, status(), std::string(route)};
  if (route == "/control/openapi.json")
    return {200, kJsonType, lockstep_openapi, std::string(route)};
  return unknown();
}

HttpResponse ControlApi::post(std::string_view target) {
  const std::string_view route = target.substr(0, target.find('?'));
  const std::string_view query = target.substr(std::min(route.size() + 1, target.size()));
  if (route == "/control/set") return set(query);
  if (route == "/control/kill-rank") return kill_rank(query);
  // The handlers only record the request: the loop reads it, agrees with the other ranks and acts.
  const std::array<std::pair<std::string_view, std::function<void()>>, 4> wishes{
      {{"/control/save", [this] { requests_.save(); }},
       {"/control/stop", [this] { requests_.stop(); }},
       {"/control/pause", [this] { requests_.set_paused(true); }},
       {"/control/resume", [this] { requests_.set_paused(false); }}}};
  for (const auto& [name, note] : wishes) {
    if (route != name) continue;
    if (name == "/control/save" && !config_.checkpoint.enabled)
      return refuse(409, "this run writes no checkpoints: checkpoint is off", route);
    const int64_t step = requests_.step();  // read before: the request takes effect after this step
    note();
    log::info("control", fmt::format("{} at step {}", route, step));
    return answer(202, {{"noted_at_step", step}}, route);
  }
  return unknown();
}

HttpResponse ControlApi::set(std::string_view query) {
  constexpr std::string_view kRoute = "/control/set";
  const size_t mark = query.find('=');
  const std::string key(query.substr(0, mark));
  const std::string value(mark == std::string_view::npos ? "" : query.substr(mark + 1));
  std::string keys;
  for (const Settable& one : settable_keys()) {
    keys += fmt::format("{}{}", keys.empty() ? "" : ", ", one.key);
    if (one.key != key) continue;
    if (!one.fits(value)) return refuse(422, fmt::format("{} takes {}", key, one.takes), kRoute);
    if (one.is_of_saves && !config_.checkpoint.enabled)
      return refuse(409, "this run writes no checkpoints: checkpoint is off", kRoute);
    const int64_t step = requests_.step();
    // The loop takes the change after a step, on all ranks at once.
    requests_.change({key, value});
    log::info("control", fmt::format("set {}={} at step {}", key, value, step));
    return answer(202, {{"noted_at_step", step}}, kRoute);
  }
  return refuse(422,
                fmt::format("only these keys of a running job can be set, as the others affect its "
                            "results: {}; stop it, change the run file and run it again",
                            keys),
                kRoute);
}

HttpResponse ControlApi::kill_rank(std::string_view query) {
  constexpr std::string_view kRoute = "/control/kill-rank", kRank = "rank=";
  const auto rank = parse_integer(query.starts_with(kRank) ? query.substr(kRank.size()) : "");
  if (!rank || *rank < 0 || *rank >= process_.world_size)
    return refuse(422, fmt::format("kill-rank takes a rank: 0 to {}", process_.world_size - 1),
                  kRoute);
  if (!process_.spares || process_.spares->num_left == 0)
    return refuse(409,
                  "no spare process is left to take the rank's place (lockstep run --spare): the "
                  "run would end or restart",
                  kRoute);
  if (requests_.pause_asked() || requests_.stop_asked() || requests_.end_asked())
    return refuse(409, "the run is paused or stops: it makes no step after which a rank could end",
                  kRoute);
  const int64_t step = requests_.step();
  requests_.change({std::string(kKillRankKey), std::to_string(*rank)});
  log::warning("control", fmt::format("{} {} at step {}", kRoute, *rank, step));
  return answer(202, {{"noted_at_step", step}}, kRoute);
}

std::string ControlApi::status() const {
  nlohmann::json json{
      {"run", config_.run.name},
      {"project_dir", folder_},
      {"state", metrics::state_name(health_.state())},
      {"world_size", process_.world_size},
      {"step", requests_.step()},
      {"steps_of_this_process", health_.num_steps()},
      {"seconds_since_step", health_.seconds_since_step(metrics::Health::Clock::now())},
      {"pause_asked", requests_.pause_asked()},
      {"stop_asked", requests_.stop_asked() || requests_.end_asked()}};
  for (const dist::RankProcess& one : process_.processes_N)
    json["ranks"].push_back({{"host", one.node}, {"process", one.pid}});
  if (process_.spares) {
    json["spares_left"] = process_.spares->num_left;
    json["lost_ranks"] = process_.spares->num_ended + process_.spares->num_hung;
  }
  // The listing may hang with the disk; the status must not.
  const auto saves = saves_.get(kListing).value;
  if (saves && !saves->empty())
    json["last_save"] = {{"step", saves->back().number}, {"prefix", saves->back().prefix}};
  return json.dump() + "\n";
}

static std::string shown(const metrics::HttpCall& call) {
  if (call.target.empty()) return fmt::format("an invalid call from {}", call.client);
  return fmt::format("{} {} from {}", printable(call.method), printable(call.target), call.client);
}

static std::string left_out(int64_t count) {
  return count == 0 ? "" : fmt::format("; {} more since the last such line", count);
}

std::optional<int64_t> LineLimit::admit(Clock::time_point now) {
  if (last_ && now - *last_ < between_) {
    ++num_kept_back_;
    return std::nullopt;
  }
  last_ = now;
  return std::exchange(num_kept_back_, 0);
}

ControlLog::~ControlLog() {
  if (const int64_t rest = refused_.num_kept_back(); rest > 0)
    log::warning("control",
                 fmt::format("{} more calls were refused since the last such line", rest));
  if (const int64_t rest = asked_.num_kept_back(); rest > 0)
    log::info("control", fmt::format("{} more GETs since the last such line", rest));
}

void ControlLog::on_call(const metrics::HttpCall& call) {
  if (next_ != nullptr) next_->on_call(call);
  const bool is_refused = call.status >= 400;
  // The same server may have other pages. A call without a readable target counts as one of ours.
  if (!call.target.empty() && !call.target.starts_with(kControlRoute)) return;
  // ControlApi logs each POST that it carries out.
  if (!is_refused && call.method == "POST") return;
  const std::optional<int64_t> kept_back =
      (is_refused ? refused_ : asked_).admit(LineLimit::Clock::now());
  if (!kept_back) return;
  if (is_refused)
    log::warning("control",
                 fmt::format("refused {}: {}{}", shown(call), call.status, left_out(*kept_back)));
  else
    log::info("control", shown(call) + left_out(*kept_back));
}

void ControlLog::on_answer(std::string_view route, int status, double duration_s) {
  if (next_ != nullptr) next_->on_answer(route, status, duration_s);
}

void ControlLog::on_rejected(metrics::Rejection reason) {
  if (next_ != nullptr) next_->on_rejected(reason);
}

}  // namespace lockstep::daemon
