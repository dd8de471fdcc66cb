#include "daemon/run/telemetry.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "daemon/config/version.h"
#include "daemon/reports/push_gateway.h"
#include "dist/agree.h"

namespace lockstep::daemon {
namespace {

constexpr std::chrono::milliseconds kLingerTurn{20};

/// A job that Slurm has queued again may restart its ranks too.
std::optional<int64_t> restarts_from_environment() {
  std::optional<int64_t> sum;
  for (const char* name :
       {"LOCKSTEP_RESTART_COUNT", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"})
    if (const char* text = std::getenv(name))
      if (const std::optional<int64_t> count = parse_integer(text)) sum = sum.value_or(0) + *count;
  return sum;
}

metrics::RunFacts run_facts(const RunConfig& config, const dist::ProcessInfo& process,
                            const LibraryVersions& libraries,
                            const std::vector<std::string>& modifiers) {
  const VersionFacts facts = version_facts();
  return {.version = facts.version,
          .commit = facts.commit,
          .torch_version = facts.torch,
          .mpi_version = libraries.mpi.substr(0, libraries.mpi.find(',')),
          .nccl_version = libraries.nccl,
          .run_name = config.run.name,
          .model = config.model.type,
          .launcher = process.launcher,
          .config_sha = config.digest().substr(0, 12),
          .rank = process.rank,
          .local_rank = process.local_rank,
          .node = process.node,
          .world_size = process.world_size,
          .is_root = process.rank == 0,
          .modifiers = modifiers,
          .param_groups = {kParamGroupNames.begin(), kParamGroupNames.end()},
          .restarts = restarts_from_environment()};
}

}  // namespace

Telemetry::Telemetry(const RunConfig& config, const dist::ProcessInfo& process,
                     const LibraryVersions& libraries, const std::vector<std::string>& modifiers,
                     dist::Communicator& control, Requests& requests)
    : metrics_(run_facts(config, process, libraries, modifiers)),
      exposition_({.turn_limit_s = config.metrics.turn_limit_s,
                   .step_limit_s = config.metrics.step_limit_s},
                  health_,
                  {.metrics = [this] { return metrics_.page(); },
                   .live = [this] { return metrics_.live(); }}) {
  (void)dist::on_all_ranks(control, [&] {
    listen(config, process, requests);
    return true;
  });
}

void Telemetry::note_restoring() {
  metrics_.set_state(metrics::RunState::kRestoring);
  health_.note_state(metrics::RunState::kRestoring);
}

void Telemetry::note_restored() {
  metrics_.set_state(metrics::RunState::kInitializing);
  health_.note_restored();
}

void Telemetry::publish_targets(const RunConfig& config, const dist::ProcessInfo& process,
                                dist::Communicator& control) {
  const std::string mine =
      server_ ? metrics::reachable_address(server_->address(), process.node) + "\n" + process.node
              : "";
  const std::string scheme = server_ && server_->is_tls() ? "https" : "http";
  const std::vector<std::string> texts = dist::gather_texts(control, mine);
  std::vector<metrics::Target> targets;
  std::vector<metrics::LiveRank> ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const size_t mark = texts[rank].find('\n');
    if (mark == std::string::npos) continue;
    ranks.push_back(
        {std::to_string(rank), texts[rank].substr(mark + 1), texts[rank].substr(0, mark)});
    targets.push_back(
        {ranks.back().address,
         {{"run", config.run.name}, {"rank", ranks.back().rank}, {"node", ranks.back().node}}});
    if (scheme == "https") targets.back().labels["__scheme__"] = scheme;  // as Prometheus says it
  }
  if (targets.empty()) return;
  if (process.rank != 0) return exposition_.share_live_with(scheme + "://" + ranks.front().address);
  targets_.emplace(config.run.project().targets(), targets);
  exposition_.set_targets(metrics::targets_json(targets));
  metrics_.set_ranks(std::move(ranks));
}

void Telemetry::linger(double limit_s, const train::StopRequest& stop) const {
  if (!server_ || limit_s == 0) return;
  log::debug("metrics", fmt::format("waiting at most {} s for a last scrape", limit_s));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (exposition_.num_scrapes() == scrapes_before_end_ &&
         std::chrono::steady_clock::now() < end && !stop.stop_asked() && !stop.end_asked())
    std::this_thread::sleep_for(kLingerTurn);
}

void Telemetry::leave_result(const RunConfig& config) const {
  if (!config.metrics.textfile_dir.empty()) write_textfile(config);
  if (!config.metrics.pushgateway.empty())
    push_result(config.metrics.pushgateway, config.run.name, metrics_.result());
}

void Telemetry::write_textfile(const RunConfig& config) const {
  std::string name = config.run.name;
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_'; }, '_');
  const auto path =
      std::filesystem::path(config.metrics.textfile_dir) / fmt::format("lockstep_{}.prom", name);
  try {
    files::write_atomically(path, metrics_.result());
  } catch (const Error& fault) {  // nobody's run fails for it
    log::warning("metrics", fmt::format("metrics.textfile_dir: {}", fault.what()));
  }
}

void Telemetry::listen(const RunConfig& config, const dist::ProcessInfo& process,
                       Requests& requests) {
  const std::optional<metrics::ListenAddress> wanted =
      config.metrics.listen_for(process.rank, process.local_rank);
  if (!wanted) return;
  http_metrics_.emplace(metrics_.registry());
  metrics::HttpOptions options{
      .listen = *wanted, .access = config.metrics.access, .fall_back_to_any_port = true};
  const bool asks_for_token = !config.metrics.access.token_file.empty();
  if (process.rank == 0 && (metrics::is_loopback(wanted->host) || asks_for_token)) {
    control_.emplace(config, process.world_size, requests, health_);
    options.post = [this](std::string_view target) { return control_->post(target); };
  }
  server_.emplace(
      options,
      [this](std::string_view target) {
        return control_ && target.starts_with(kControlRoute) ? control_->get(target)
                                                             : exposition_.handle(target);
      },
      &*http_metrics_);
  const bool moved = wanted->port != 0 && server_->address().port != wanted->port;
  log::info("metrics", fmt::format("{}/metrics{}", server_->origin(),
                                   moved ? fmt::format(" (port {} was taken)", wanted->port) : ""));
}

}  // namespace lockstep::daemon
