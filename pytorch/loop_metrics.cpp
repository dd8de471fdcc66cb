#include "pytorch/loop_metrics.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "dist/communicator.h"
#include "metrics/http/access.h"
#include "metrics/http/listen_address.h"
#include "metrics/rank_pages.h"
#include "train/step/trainer.h"

namespace lockstep::pytorch {
namespace {

/// Returns the number of earlier ranks on this rank's host.
int local_rank(const std::vector<std::string>& hosts_N, int rank) {
  return static_cast<int>(
      std::count(hosts_N.begin(), hosts_N.begin() + rank, hosts_N[static_cast<size_t>(rank)]));
}

metrics::RunFacts facts_of(const TrainingLoop& loop, const PageOptions& options,
                           const std::vector<std::string>& hosts_N) {
  return {.version = options.version,
          .torch_version = options.torch_version,
          .run_name = options.run_name,
          .model = options.model,
          .launcher = "pytorch",
          .rank = loop.rank(),
          .local_rank = local_rank(hosts_N, loop.rank()),
          .node = host_name(),
          .world_size = static_cast<int>(hosts_N.size()),
          .is_root = loop.rank() == 0,
          .modifiers = recal::modifier_names(loop.recipe().timeline()),
          .param_groups = {kParamGroupNames.begin(), kParamGroupNames.end()}};
}

/// Returns the options of a recorder that writes no files.
train::RecorderOptions recorder_options(const TrainingLoop& loop, const PageOptions& options) {
  train::RecorderOptions chosen{.node = host_name(), .is_root = false};
  chosen.num_parameters = options.num_parameters;
  for (const recal::ParamSparsity& one : loop.recipe().measure())
    chosen.num_prunable_weights += one.num_weights;
  const recal::Timeline& timeline = loop.recipe().timeline();
  for (int i = 0; i < static_cast<int>(timeline.modifiers().size()); ++i)
    if (timeline.target_sparsity_at(0, i)) chosen.pruning_modifiers.push_back(i);
  return chosen;
}

}  // namespace

LoopMetrics::LoopMetrics(TrainingLoop& loop, const PageOptions& options)
    : loop_(loop),
      process_(metrics::random_token().substr(0, 16)),
      hosts_N_(dist::gather_texts(loop.control(), host_name())),
      steps_per_epoch_(options.steps_per_epoch),
      run_name_(options.run_name),
      series_(facts_of(loop, options, hosts_N_)),
      recorder_(recorder_options(loop, options), loop.recipe(), series_, health_),
      exposition_({.process = process_}, health_,
                  {.metrics = [this](metrics::PageFormat format) { return series_.page(format); },
                   .live = [this] { return series_.live(); }}),
      answers_(series_.registry()),
      recorded_step_(loop.step()) {
  (void)dist::on_all_ranks(loop.control(), [&] {
    listen(options);
    return true;
  });
  share_addresses();
  health_.note_world_formed();
  recorder_.state(metrics::RunState::kTraining);
}

void LoopMetrics::listen(const PageOptions& options) {
  const std::optional<metrics::ListenAddress> first = metrics::parse_listen_address(options.listen);
  if (!first)
    throw Error(ExitCode::kConfig, "metrics",
                fmt::format("metrics_address must be host:port (an IPv6 host in brackets), not "
                            "'{}'",
                            options.listen));
  metrics::HttpOptions http{
      .listen = metrics::address_of_local_rank(*first, local_rank(hosts_N_, loop_.rank())),
      .fall_back_to_any_port = true};
  http.access.token_file = options.token_file;
  server_.emplace(
      http, [this](const metrics::HttpRequest& request) { return exposition_.handle(request); },
      &answers_);
  log::info("metrics", fmt::format("{}/metrics", server_->origin()));
}

/// Gives rank 0's page the list of all pages, and its browser access to them. Collective.
void LoopMetrics::share_addresses() {
  const std::string own =
      metrics::reachable_address(server_->address(), hosts_N_[static_cast<size_t>(loop_.rank())]);
  const std::vector<std::string> addresses_N = dist::gather_texts(loop_.control(), own);
  const std::vector<std::string> processes_N = dist::gather_texts(loop_.control(), process_);
  if (loop_.rank() != 0) return exposition_.share_live_with("http://" + addresses_N.front());
  std::vector<metrics::Target> targets;
  std::vector<metrics::LiveRank> shown;
  for (size_t r = 0; r < addresses_N.size(); ++r) {
    targets.push_back({addresses_N[r],
                       {{"run", run_name_},
                        {"rank", std::to_string(r)},
                        {"node", hosts_N_[r]},
                        {"__param_process", processes_N[r]}}});
    shown.push_back({std::to_string(r), hosts_N_[r], addresses_N[r], ""});
  }
  exposition_.set_targets(metrics::targets_json(targets));
  series_.set_ranks(std::move(shown));
}

void LoopMetrics::enter(Phase phase) {
  const Clock::time_point now = Clock::now();
  phases_.*phase_ += std::chrono::duration<double>(now - since_).count();
  since_ = now;
  phase_ = phase;
}

void LoopMetrics::record(int64_t num_samples, const optim::StepRates& rates) {
  enter(&metrics::PhaseSeconds::data);
  if (loop_.step() == std::exchange(recorded_step_, loop_.step())) return;
  metrics::PhaseSeconds phases = std::exchange(phases_, {});
  train::StepReport report;
  report.totals = loop_.totals();
  // The wait for gradients is within the user's backward pass.
  phases.allreduce = std::min(report.totals.wait_s, phases.backward);
  phases.backward -= phases.allreduce;
  report.step = loop_.step();
  report.epoch = steps_per_epoch_ > 0
                     ? static_cast<double>(report.step) / static_cast<double>(steps_per_epoch_)
                     : 0;
  report.has_loss = false;
  report.rates = rates;
  report.sparsity = loop_.recipe().sparsity();
  report.rank_samples = num_samples;
  report.rank_skipped_update = !report.totals.finite();
  report.num_mask_updates = loop_.recipe().num_mask_updates() -
                            std::exchange(num_mask_updates_, loop_.recipe().num_mask_updates());
  report.num_trainable = loop_.num_trainable();
  report.duration_s = phases.sum();
  report.phases = phases;
  recorder_.after_step({.step = report.step, .report = &report});
}

void LoopMetrics::record_save(const checkpoint::SaveResult& save) {
  recorder_.save({.step = save.number,
                  .committed = save.ok,
                  .duration_s = save.seconds,
                  .stall_s = save.blocked_s,
                  .written_bytes = save.bytes_written});
}

void LoopMetrics::record_restore(const metrics::RestoreSample& restore) {
  series_.record_restore(restore);
  health_.note_restored();
  recorder_.state(metrics::RunState::kTraining);
  recorded_step_ = loop_.step();
}

}  // namespace lockstep::pytorch
