#include "cli/scale_command.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process.h"
#include "daemon/run/device.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "recal/recipe/recipe_reader.h"
#include "train/step/trainer.h"

// Either takes the times of a step from the command line or measures them here. Then it evaluates
// the formula for each number of ranks.
namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

// The first steps fill caches and are not timed. The timed ones take about a second.
constexpr int64_t kWarmSteps = 2, kMostSteps = 200;
constexpr size_t kLeastSteps = 5;
constexpr double kTimedSeconds = 1;
// Payload fraction of an Ethernet frame: MTU 1500 without the headers of IPv4 and of TCP with
// timestamps.
constexpr double kPayloadShare = 1448.0 / 1514;

void refuse_unless(bool is_sound, const std::string& what) {
  if (!is_sound) throw Error(ExitCode::kUsage, "plan", what);
}

/// Throws Error for numbers that contradict each other.
void check_options(const ScaleOptions& options) {
  const int64_t ranks = options.ranks, per_host = options.ranks_per_host;
  refuse_unless(options.backward_ms + options.update_ms <= options.step_ms.value_or(HUGE_VAL),
                "--backward-ms and --update-ms are parts of --step-ms; together they exceed it");
  refuse_unless(ranks <= per_host || ranks % per_host == 0,
                fmt::format("--scale {} does not fill hosts of {} ranks: give a multiple of {}, or "
                            "another --ranks-per-host",
                            ranks, per_host, per_host));
  refuse_unless(ranks <= per_host || (options.link_gbit && options.latency_us),
                "several hosts have a link between them: give --link-gbit and --latency-us "
                "(`lockstep doctor --hosts n1:1,n2:1` measures both), or --ranks-per-host");
  refuse_unless(!recal::is_recipe(options.file),
                options.file + " is a bare recipe: --scale needs a run file with a network");
}

daemon::RunConfig load(const ScaleOptions& options) {
  daemon::RunConfig config = daemon::require_run_config(options.file, options.overrides);
  refuse_unless(config.sync.sync_replicas,
                "sync.sync_replicas is false: --scale supports only an exchange at every step; try "
                "--set sync.sync_replicas=true");
  refuse_unless(config.run.device != "cuda" || options.step_ms,
                "run.device is cuda: steps are timed here on CPUs only; give --step-ms");
  return config;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Trains a few steps in this process and fills in their median times. Nothing is written.
void time_steps(daemon::TrainingContext& context, ScaleInputs* inputs) {
  // A complete trainer, so that clipping, masks and the loss scale are timed too.
  train::Trainer trainer(context.trainer_parts(), context.config.train);
  const int64_t num_steps = std::clamp<int64_t>(context.total_steps(), 1, kMostSteps);
  const int64_t num_warm = std::min<int64_t>(kWarmSteps, num_steps - 1);
  std::vector<double> all, backward, update;
  double timed_s = 0;
  for (int64_t i = 0; i < num_steps && (timed_s < kTimedSeconds || all.size() < kLeastSteps); ++i) {
    const metrics::PhaseSeconds phases = trainer.step(train::Votes()).phases;
    if (i < num_warm) continue;
    timed_s += phases.sum();
    all.push_back(phases.sum());
    backward.push_back(phases.backward);
    update.push_back(phases.optimizer);
  }
  inputs->step_s = median(all);
  inputs->backward_s = median(backward);
  inputs->update_s = median(update);
}

/// Fills in the numbers that the command line does not give.
void measure(const daemon::RunConfig& config, const ScaleOptions& options, ScaleInputs* inputs) {
  if (options.step_ms && options.gradient_mb) return;
  // The same settings as in a run, or the times would not be comparable.
  daemon::keep_freed_memory();
  at::globalContext().setFlushDenormal(true);
  const int64_t cores = num_usable_cores() / options.ranks_per_host;
  at::set_num_threads(
      static_cast<int>(config.run.threads > 0 ? config.run.threads : std::max<int64_t>(1, cores)));
  dist::SelfCommunicator alone;
  const daemon::FoundData found = daemon::find_data(config.data, alone);
  daemon::TrainingContext context(config, alone, alone, alone, found);
  // 16-bit gradients take half the bytes on the network.
  const double travelling_share = config.sync.comm_dtype == "fp32" ? 1 : 0.5;
  if (!options.gradient_mb)
    for (const FlatBuffer& buffer : context.flat_params.buffers())
      inputs->gradient_bytes += static_cast<double>(buffer.values_E.nbytes()) * travelling_share;
  if (!options.step_ms) time_steps(context, inputs);
}

/// Describes where the numbers come from: given, measured or counted.
std::string basis(const ScaleOptions& options, const ScaleInputs& inputs) {
  const std::string link = options.link_gbit ? fmt::format("{} Gbit/s, {} us", *options.link_gbit,
                                                           options.latency_us.value_or(0))
                                             : "none";
  return fmt::format(
      "one rank: {:.3f} ms a step ({}), {:.3f} ms of it backward, {:.3f} ms update\n"
      "gradients: {:.3f} MB ({}); link of a host: {}; {} rank(s) a host\n"
      "{}\n\n",
      1e3 * inputs.step_s,
      options.step_ms ? "given" : fmt::format("measured here, {} thread(s)", at::get_num_threads()),
      1e3 * inputs.backward_s, 1e3 * inputs.update_s, 1e-6 * inputs.gradient_bytes,
      options.gradient_mb ? "given" : "counted", link, inputs.ranks_per_host,
      inputs.divides_batch ? "data.global_batch_size: ranks divide the batch"
                           : "data.batch_size_per_rank: each rank adds a batch");
}

std::string table(const std::vector<ScaleRow>& rows) {
  std::string text =
      fmt::format("{:>7} {:>6} {:>12} {:>12} {:>12} {:>12} {:>8} {:>12}\n", "ranks", "hosts",
                  "compute ms", "exchange ms", "waited ms", "step ms", "comm. %", "efficiency %");
  for (const ScaleRow& row : rows)
    text += fmt::format("{:>7} {:>6} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.3f} {:>8.1f} {:>12.1f}\n",
                        row.ranks, row.hosts, 1e3 * row.compute_s, 1e3 * row.exchange_s,
                        1e3 * row.waited_s, 1e3 * row.step_s, 100 * row.communication,
                        100 * row.efficiency);
  return text;
}

/// Returns inputs and rows as JSON, with units in the names.
Json json_of(const ScaleInputs& inputs, const std::vector<ScaleRow>& rows) {
  Json all = {{"step_s", inputs.step_s},
              {"backward_s", inputs.backward_s},
              {"update_s", inputs.update_s},
              {"gradient_bytes", inputs.gradient_bytes},
              {"rows", Json::array()}};
  for (const ScaleRow& row : rows)
    all["rows"].push_back({{"ranks", row.ranks},
                           {"hosts", row.hosts},
                           {"compute_s", row.compute_s},
                           {"exchange_s", row.exchange_s},
                           {"waited_s", row.waited_s},
                           {"step_s", row.step_s},
                           {"communication", row.communication},
                           {"efficiency", row.efficiency}});
  return all;
}

/// Evaluates the formula for one number of ranks.
ScaleRow row_of(const ScaleInputs& inputs, int64_t ranks) {
  ScaleRow row{.ranks = ranks,
               .hosts = (ranks + inputs.ranks_per_host - 1) / inputs.ranks_per_host};
  // The formula is kScaleFormula.
  const double share = inputs.divides_batch ? 1.0 / static_cast<double>(ranks) : 1;
  row.compute_s = inputs.update_s + (inputs.step_s - inputs.update_s) * share;
  if (row.hosts > 1) {
    const auto hosts = static_cast<double>(row.hosts);
    row.exchange_s =
        2 * inputs.gradient_bytes * (hosts - 1) / hosts / (inputs.link_bytes_s * kPayloadShare) +
        2 * std::ceil(std::log2(hosts)) * inputs.latency_s;
  }
  row.waited_s = std::max(0.0, row.exchange_s - inputs.backward_s * share);
  row.step_s = row.compute_s + row.waited_s;
  row.communication = row.waited_s / row.step_s;
  row.efficiency = inputs.step_s * share / row.step_s;
  return row;
}

}  // namespace

std::vector<ScaleRow> scale_rows(const ScaleInputs& inputs, int64_t max_ranks) {
  std::vector<ScaleRow> rows{row_of(inputs, 1)};
  for (int64_t ranks = inputs.ranks_per_host; ranks < max_ranks; ranks *= 2)
    if (ranks > 1) rows.push_back(row_of(inputs, ranks));
  if (max_ranks > 1) rows.push_back(row_of(inputs, max_ranks));
  return rows;
}

daemon::CommandResult scale_command(const ScaleOptions& options) {
  check_options(options);
  const daemon::RunConfig config = load(options);
  ScaleInputs inputs{.step_s = 1e-3 * options.step_ms.value_or(0),
                     .backward_s = 1e-3 * options.backward_ms,
                     .update_s = 1e-3 * options.update_ms,
                     .gradient_bytes = 1e6 * options.gradient_mb.value_or(0),
                     .divides_batch = config.data.global_batch_size.has_value(),
                     .ranks_per_host = options.ranks_per_host,
                     .link_bytes_s = options.link_gbit.value_or(1) * 1e9 / 8,
                     .latency_s = 1e-6 * options.latency_us.value_or(0)};
  measure(config, options, &inputs);
  // Without overlap, no part of the exchange is hidden behind backward.
  if (config.sync.overlap == "false") inputs.backward_s = 0;
  const std::vector<ScaleRow> rows = scale_rows(inputs, options.ranks);
  if (!options.json_file.empty())
    files::write_atomically(options.json_file, json_of(inputs, rows).dump(2) + "\n");
  return {basis(options, inputs) + table(rows), 0};
}

}  // namespace lockstep::cli
