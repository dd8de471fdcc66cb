#include "cli/tensor_commands.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "coord/callbacks_handler.h"
#include "daemon/config/program.h"
#include "daemon/control/signals.h"
#include "daemon/run/device.h"
#include "infer/exports/inference.h"
#include "infer/inferer.h"
#include "infer/saved_model.h"
#include "metrics/http/http_server.h"
#include "metrics/service_metrics.h"

// One process: the inferer reads the feed, runs the network and the callbacks in its own threads.
// This file connects the parts and writes the KPIs at the end.
namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

void require_usage(const InferCommandOptions& options) {
  if (options.saved_model.empty() == options.checkpoint.empty())
    throw Error(ExitCode::kUsage, "infer",
                "give exactly one of --saved_model and --checkpoint, which name the network");
  require_one_process("infer",
                      "inference is one process on at most one device, and each would store the "
                      "same results");
}

/// Opens a checkpoint or an export; `latest` is the newest one of the run's folder.
infer::LoadedNetwork open_network(const InferCommandOptions& options,
                                  const exports::InferConfig& config) {
  const Project project = config.run.project();
  const bool with_graph = config.inferer.options.engine.engine == "sparse";
  if (options.saved_model.empty())
    return exports::open_checkpoint(options.checkpoint == "latest"
                                        ? config.checkpoint.folder(project).string()
                                        : options.checkpoint,
                                    options.config_file, with_graph);
  if (options.saved_model.ends_with(".onnx")) return infer::open_onnx(options.saved_model);
  const fs::path folder = options.saved_model == "latest"
                              ? infer::newest_saved_model(project.saved_models())
                              : fs::path(options.saved_model);
  return infer::open_saved_model(folder, daemon::version_facts().version, with_graph);
}

/// Last values of KPIs. Written by the callbacks' thread, read by the page's.
class Kpis {
 public:
  void set(const std::string& name, double value) {
    const std::scoped_lock lock(mutex_);
    values_[name] = value;
  }
  std::map<std::string, double> values() const {
    const std::scoped_lock lock(mutex_);
    return values_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, double> values_;
};

fs::path results_folder(const exports::InferConfig& config) {
  return config.inferer.log_dir.empty() ? config.run.project().infer()
                                        : fs::path(config.inferer.log_dir);
}

/// Creates the callbacks. They may read the inputs, the targets and the network's outputs.
coord::CallbacksHandler make_handler(const exports::InferConfig& config,
                                     const infer::LoadedNetwork& network, Kpis* kpis) {
  std::vector<std::string> source_keys = {"inputs", "_targets"};
  for (const std::string& key : infer::keys_of(network.nodes.outputs)) source_keys.push_back(key);
  const coord::Services services{
      .set_kpi = [kpis](const std::string& name, double value) { kpis->set(name, value); },
      .class_names = network.class_names};
  return {coord::make_callbacks(config.inferer.callbacks, coord::Mode::kInfer, services),
          source_keys,
          {.mode = coord::Mode::kInfer, .log_dir = results_folder(config)}};
}

/// Page of the inference, served while the object lives if the run file says so.
class Page {
 public:
  Page(const metrics::MetricsOptions& options, const infer::Inferer& inferer, const Kpis& kpis)
      : metrics_({.feeds_waiting = [&inferer] { return inferer.num_feeds_waiting(); },
                  .answers_waiting = [&inferer] { return inferer.num_answers_waiting(); },
                  .num_iterations = [&inferer] { return inferer.num_iterations(); },
                  .kpis = [&kpis] { return kpis.values(); }}) {
    const auto listen = options.listen_for(/*rank=*/0, /*local_rank=*/0, /*num_ranks=*/1);
    if (!listen) return;
    server_.emplace(
        metrics::HttpOptions{
            .listen = *listen, .access = options.access, .fall_back_to_any_port = true},
        [this](std::string_view target) { return answer(target); }, nullptr);
    log::info("metrics", server_->origin() + "/metrics");
  }

 private:
  metrics::HttpResponse answer(std::string_view target) const {
    if (target.substr(0, target.find('?')) == "/metrics")
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = metrics_.page(),
              .route = "/metrics"};
    return {.status = 404, .body = "try /metrics\n"};
  }

  const metrics::InferenceMetrics metrics_;
  std::optional<metrics::HttpServer> server_;
};

std::string told(const infer::InferenceResult& result, const infer::LoadedNetwork& network,
                 const Kpis& kpis) {
  std::string text =
      fmt::format("{}, step {}: {} iteration(s), {} sample(s){}; engine {}", network.source,
                  network.step, result.num_iterations, result.num_samples,
                  result.stopped ? ", stopped on request" : "", result.engine);
  for (const auto& [name, value] : kpis.values()) text += fmt::format(", {} {:.4f}", name, value);
  return text + "\n";
}

}  // namespace

daemon::CommandResult infer_command(const InferCommandOptions& options) {
  require_usage(options);
  exports::InferConfig config = exports::load_infer_config(options.config_file, options.feeds);
  if (!options.engine.empty()) config.inferer.options.engine.engine = options.engine;
  daemon::keep_freed_memory();
  // Before the long part starts, so that no signal meets the default action.
  const daemon::Signals signals;
  const at::Device device = daemon::set_up_alone(config.run, config.gpu);
  const infer::LoadedNetwork network = open_network(options, config);
  const std::unique_ptr<infer::DataFeeder> feeder =
      exports::open_feeds(config, network.class_names);
  Kpis kpis;
  coord::CallbacksHandler handler = make_handler(config, network, &kpis);
  infer::Inferer inferer(network, device, *feeder, handler, config.inferer.options);
  log::info("infer", fmt::format("{}, step {}; engine {}", network.source, network.step,
                                 inferer.predictor().engine()));
  const Page page(config.metrics, inferer, kpis);
  const infer::InferenceResult result =
      inferer.run([&signals] { return signals.end_asked() || signals.stop_asked(); });
  if (!kpis.values().empty()) {
    files::make_folders(results_folder(config));
    files::write_atomically(results_folder(config) / "kpi.json",
                            nlohmann::json(kpis.values()).dump(2) + "\n");
  }
  std::string text = told(result, network, kpis);
  if (options.explain) text += inferer.predictor().explanation();
  return {text, result.stopped ? static_cast<int>(ExitCode::kStopped) : 0};
}

}  // namespace lockstep::cli
