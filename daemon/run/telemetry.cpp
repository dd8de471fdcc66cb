#include "daemon/run/telemetry.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/run/device.h"

// Connects the parts of metrics/ for one rank: series, health, pages and, on rank 0, the control
// API. All servers run on their own threads.
namespace lockstep::daemon {
namespace {

constexpr std::chrono::milliseconds kLingerTurn{20};

/// Returns the number of restarts. Counters are added: a job that Slurm has requeued may restart
/// its ranks too.
std::optional<int64_t> restarts_from_environment() {
  std::optional<int64_t> sum;
  for (const char* name :
       {"LOCKSTEP_RESTART_COUNT", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"})
    if (const char* text = std::getenv(name))
      if (const std::optional<int64_t> count = parse_integer(text)) sum = sum.value_or(0) + *count;
  return sum;
}

std::optional<metrics::SpareFacts> spare_facts(const dist::ProcessInfo& process) {
  if (!process.spares) return std::nullopt;
  return metrics::SpareFacts{.num_left = process.spares->num_left,
                             .num_ended = process.spares->num_ended,
                             .num_hung = process.spares->num_hung};
}

/// Returns the facts for the info series.
metrics::RunFacts run_facts(const RunConfig& config, const dist::ProcessInfo& process,
                            const OpenedLibraries& libraries,
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
          .restarts = restarts_from_environment(),
          .spares = spare_facts(process)};
}

/// Parses texts "address\nnode\nprocess\n1", ordered by rank; 1 if Prometheus scrapes the rank. An
/// empty text means no page.
std::vector<metrics::RankSource> served_ranks(const std::vector<std::string>& texts) {
  std::vector<metrics::RankSource> ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::vector<std::string> lines = split(texts[rank]);
    if (lines.size() == 4)
      ranks.push_back({.rank = static_cast<int>(rank),
                       .node = lines[1],
                       .address = lines[0],
                       .is_scraped = lines[3] == "1",
                       .process = lines[2]});
  }
  return ranks;
}

std::optional<metrics::ListenAddress> listen_for(const RunConfig& config,
                                                 const dist::ProcessInfo& process) {
  return config.metrics.listen_for(process.rank, process.local_rank, process.world_size);
}

/// Returns the run's name for use in a file name. A name that needs changes gets its digest
/// appended, so that different names stay different.
std::string name_for_file(const std::string& run) {
  constexpr size_t kLongest = 100, kDigits = 8;
  std::string name = run.substr(0, kLongest);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_'; }, '_');
  return name == run ? name : name + "_" + sha256_hex(run).substr(0, kDigits);
}

}  // namespace

Telemetry::Telemetry(const RunConfig& config, const dist::ProcessInfo& process,
                     const OpenedLibraries& libraries, const std::vector<std::string>& modifiers,
                     dist::Communicator& control, Requests& requests, metrics::Health& health)
    : metrics_(run_facts(config, process, libraries, modifiers)),
      health_(health),
      exposition_({.turn_limit_s = config.metrics.turn_limit_s,
                   .step_limit_s = config.metrics.step_limit_s,
                   .process = process_},
                  health_,
                  {.metrics = [this](metrics::PageFormat format) { return metrics_.page(format); },
                   .live = [this] { return metrics_.live(); }}) {
  // One secret for all ranks: they fetch pages from each other.
  if (config.metrics.gathers(process.world_size))
    token_ = dist::broadcast_text(control, metrics::random_token());
  (void)dist::on_all_ranks(control, [&] {
    listen(config, process, requests);
    return true;
  });
}

void Telemetry::show_gpu(const metrics::GpuFacts& gpu) {
  metrics::add_gpu_series(metrics_.registry(), gpu);
  metrics_.set_gpu_use([index = gpu.index] { return gpu_use(index); });
}

void Telemetry::note_restoring() {
  // Two receivers: the exported series, and the probes with the watchdog.
  metrics_.set_state(metrics::RunState::kRestoring);
  health_.note_state(metrics::RunState::kRestoring);
}

void Telemetry::note_restored() {
  metrics_.set_state(metrics::RunState::kInitializing);
  health_.note_restored();
}

void Telemetry::publish_targets(const RunConfig& config, const dist::ProcessInfo& process,
                                dist::Communicator& control) {
  // Other hosts cannot use "every interface", so the node's name replaces it.
  const std::string address =
      server_ ? metrics::reachable_address(server_->address(), process.node) : "";
  const bool is_scraped = listen_for(config, process).has_value();
  std::vector<metrics::RankSource> ranks = served_ranks(dist::gather_texts(
      control, address.empty() ? ""
                               : fmt::format("{}\n{}\n{}\n{}", address, process.node, process_,
                                             is_scraped ? 1 : 0)));
  if (ranks.empty()) {  // Prometheus would continue to scrape a list that a killed run left
    if (process.rank == 0) files::remove_file(config.run.project().targets());
    return;
  }
  if (process.rank == 0) return show(config, ranks);
  // Rank 0's live page reads this rank's data, so it must be an allowed origin.
  exposition_.share_live_with(scheme() + "://" + ranks.front().address);
  if (others_) gather(process.rank, ranks);
}

void Telemetry::show(const RunConfig& config, const std::vector<metrics::RankSource>& ranks) {
  std::vector<metrics::Target> targets;
  std::vector<metrics::LiveRank> shown;
  for (const metrics::RankSource& source : ranks) {
    const std::string rank = std::to_string(source.rank);
    // A rank without its own scraped page is shown by another one.
    const int at = metrics::rank_that_shows(source, ranks);
    const auto host = std::find_if(ranks.begin(), ranks.end(),
                                   [=](const metrics::RankSource& one) { return one.rank == at; });
    shown.push_back({rank, source.node, host->address, at == source.rank ? "" : "?rank=" + rank});
    if (!source.is_scraped) continue;
    targets.push_back({source.address, {{"run", config.run.name}}});
    std::map<std::string, std::string>& labels = targets.back().labels;
    // In merged pages, each series has these labels itself.
    if (!others_) labels.insert({{"rank", rank}, {"node", source.node}});
    labels["__param_process"] = source.process;                // requested as /metrics?process=...
    if (scheme() == "https") labels["__scheme__"] = scheme();  // Prometheus' label for the scheme
  }
  targets_.emplace(config.run.project().targets(), targets);
  share_targets(config, targets);
  exposition_.set_targets(metrics::targets_json(targets));
  metrics_.set_ranks(std::move(shown));
  if (others_) gather(0, ranks);
}

/// Writes the shared list. Its name contains the run and a digest of its folder, since other
/// folders may contain a run of the same name.
void Telemetry::share_targets(const RunConfig& config,
                              const std::vector<metrics::Target>& targets) {
  if (config.metrics.targets_dir.empty()) return;
  constexpr size_t kDigits = 8;
  const std::string folder = std::filesystem::absolute(config.run.project().folder()).string();
  const auto path = std::filesystem::path(config.metrics.targets_dir) /
                    fmt::format("{}-{}.json", name_for_file(config.run.name),
                                sha256_hex(folder).substr(0, kDigits));
  try {
    files::make_folders(path.parent_path());
    shared_targets_.emplace(path, targets);
  } catch (const Error& fault) {  // the run itself must not fail because of it
    log::warning("metrics", fmt::format("metrics.targets_dir: {}", fault.what()));
  }
}

void Telemetry::gather(int own_rank, const std::vector<metrics::RankSource>& ranks) {
  metrics::RankSource own;
  std::vector<metrics::RankSource> others;
  for (const metrics::RankSource& source : ranks) {
    if (source.rank == own_rank)
      own = source;
    else if (metrics::rank_that_shows(source, ranks) == own_rank)
      others.push_back(source);
  }
  others_->gather_from(own, others, token_);
}

void Telemetry::linger(const metrics::MetricsOptions& options, const StopRequest& stop) const {
  const double limit_s = options.linger_s;
  if (!server_ || limit_s == 0) return;
  if (!options.lingers_unseen && scrapes_before_end_ == 0) return;  // nothing scrapes this run
  log::debug("metrics", fmt::format("waiting at most {} s for a last scrape", limit_s));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  // The test is on the counter, so a scrape that began before the end does not count as the last
  // one.
  while (exposition_.num_scrapes() == scrapes_before_end_ &&
         std::chrono::steady_clock::now() < end && !stop.stop_asked() && !stop.end_asked())
    std::this_thread::sleep_for(kLingerTurn);
}

void Telemetry::write_textfile(const RunConfig& config) const {
  if (config.metrics.textfile_dir.empty()) return;
  const auto path = std::filesystem::path(config.metrics.textfile_dir) /
                    fmt::format("lockstep_{}.prom", name_for_file(config.run.name));
  try {
    files::write_atomically(path, metrics_.result());
  } catch (const Error& fault) {  // the run itself must not fail because of it
    log::warning("metrics", fmt::format("metrics.textfile_dir: {}", fault.what()));
  }
}

void Telemetry::listen(const RunConfig& config, const dist::ProcessInfo& process,
                       Requests& requests) {
  const std::optional<metrics::ListenAddress> wanted = listen_for(config, process);
  metrics::HttpOptions options{.fall_back_to_any_port = true};
  // A rank that is not scraped still serves the rank that merges the pages. Loopback is enough if
  // that rank is on the same host.
  if (!wanted) {
    if (!config.metrics.gathers(process.world_size)) return;
    options.listen = {
        process.num_nodes == 1 || config.metrics.scope_for(process.world_size) == "node"
            ? "127.0.0.1"
            : "0.0.0.0",
        0};
    // Only other ranks of this run know the token.
    options.access.token = token_;
    return serve(options);
  }
  options.listen = *wanted;
  options.access = config.metrics.access;
  if (config.control.is_on_pages() && process.rank == 0) {  // the run file then names a token
    control_.emplace(config, process, requests, health_);
    options.post = [this](std::string_view target) { return control_->post(target); };
  }
  if (config.metrics.gathers(process.world_size)) {
    others_.emplace(
        [this](const metrics::HttpRequest& request) { return exposition_.handle(request); },
        [this](int num_ranks) { http_metrics_->set_missing_ranks(num_ranks); });
    options.later = &*others_;
  }
  serve(options);
  const bool moved = wanted->port != 0 && server_->address().port != wanted->port;
  log::info("metrics",
            fmt::format("{}/metrics{}", server_->origin(),
                        moved ? fmt::format(" (port {} was in use)", wanted->port) : ""));
}

void Telemetry::serve(const metrics::HttpOptions& options) {
  http_metrics_.emplace(metrics_.registry());
  const ControlApi* api = control_ ? &*control_ : nullptr;
  // One observer per server: the control log passes calls on to the metrics.
  if (api != nullptr) control_log_.emplace(&*http_metrics_);
  metrics::HttpObserver* const observer =
      control_log_ ? static_cast<metrics::HttpObserver*>(&*control_log_) : &*http_metrics_;
  server_.emplace(
      options,
      [this, api](const metrics::HttpRequest& request) {
        return api != nullptr && request.target.starts_with(kControlRoute)
                   ? api->get(request)
                   : exposition_.handle(request);
      },
      observer);
}

void Telemetry::open_control_socket(const RunConfig& config, const dist::ProcessInfo& process,
                                    dist::Communicator& control, Requests& requests) {
  const std::filesystem::path path = config.control.socket_path(config.run.project());
  if (path.empty()) return;
  (void)dist::on_all_ranks(control, [&] {
    if (control.rank() != 0) return true;
    // The control API may already exist for the pages; both servers share it.
    if (!control_) control_.emplace(config, process, requests, health_);
    try {
      listen_at(path);
    } catch (const Error& fault) {
      if (config.control.names_socket()) throw;
      // The file system may have no sockets, or the folder may be open to everybody. A run that
      // is never controlled needs no socket.
      log::warning("control", fmt::format("lockstep ctl cannot reach this run: {}", fault.what()));
    }
    return true;
  });
}

void Telemetry::listen_at(const std::filesystem::path& socket) {
  socket_log_.emplace(nullptr);
  control_server_.emplace(
      metrics::HttpOptions{
          .socket_path = socket,
          .post = [this](std::string_view target) { return control_->post(target); }},
      [this](std::string_view target) { return control_->get(target); }, &*socket_log_);
  log::info("control", control_server_->origin());
}

}  // namespace lockstep::daemon
