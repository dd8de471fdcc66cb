#include "daemon/plan/scale_command.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process/cgroup.h"
#include "base/process/cores.h"
#include "daemon/config/run_config.h"
#include "daemon/device/threading.h"
#include "daemon/plan/measured_job.h"
#include "dist/sync_options.h"
#include "recal/recipe/recipe_reader.h"

namespace lockstep::daemon {
namespace {

using Json = nlohmann::ordered_json;

void refuse_unless(bool is_well, const std::string& what) {
  if (!is_well) throw Error(ExitCode::kUsage, "plan", what);
}

bool is_positive(double number) { return std::isfinite(number) && number > 0; }

void check_options(const ScaleOptions& options) {
  const int64_t ranks = options.ranks, per_host = options.ranks_per_host;
  refuse_unless(ranks >= 1 && ranks <= kMostScaleRanks,
                fmt::format("--scale is {}, it must be 1 to {}", ranks, kMostScaleRanks));
  refuse_unless(
      per_host >= 1 && per_host <= kMostScaleRanks,
      fmt::format("--ranks-per-host is {}, it must be 1 to {}", per_host, kMostScaleRanks));
  refuse_unless(ranks <= per_host || ranks % per_host == 0,
                fmt::format("--scale {} does not fill hosts of {} ranks: give a multiple of {}, or "
                            "another --ranks-per-host",
                            ranks, per_host, per_host));
  refuse_unless(
      !options.link_gbit || is_positive(*options.link_gbit),
      fmt::format("--link-gbit is {}, it must be above 0", options.link_gbit.value_or(0)));
  refuse_unless(
      !options.latency_us || (std::isfinite(*options.latency_us) && *options.latency_us >= 0),
      fmt::format("--latency-us is {}, it must be 0 or more", options.latency_us.value_or(0)));
  refuse_unless(
      !options.disk_mbyte_s || is_positive(*options.disk_mbyte_s),
      fmt::format("--disk-mbyte-s is {}, it must be above 0", options.disk_mbyte_s.value_or(0)));
  refuse_unless(ranks <= per_host || (options.link_gbit && options.latency_us),
                "several hosts have a link between them: give --link-gbit and --latency-us "
                "(`lockstep doctor --hosts n1:1,n2:1` measures both), or --ranks-per-host");
  refuse_unless(!recal::is_recipe(options.file),
                options.file + " is a bare recipe: --scale needs a run file with a network");
}

RunConfig load(const ScaleOptions& options) {
  Diagnostics faults;
  RunConfig config = load_run_config(options.file, options.overrides, &faults);
  faults.throw_if_any("config");
  refuse_unless(config.sync.sync_replicas,
                "sync.sync_replicas is false: --scale knows the exchange of every step only; try "
                "--set sync.sync_replicas=true");
  refuse_unless(
      config.run.device != "cuda",
      "run.device is cuda: --scale measures and models CPUs; NCCL's ways are not known to "
      "it");
  return config;
}

ScaleHost host_of(const ScaleOptions& options, const RunConfig& config) {
  ScaleHost host;
  host.ranks_per_host = static_cast<int>(options.ranks_per_host);
  host.link_bytes_s = options.link_gbit.value_or(1) * 1e9 / 8;
  host.latency_s = options.latency_us.value_or(0) * 1e-6;
  host.memory_bytes_s = measure_memory_bytes_s();
  host.memory_bytes = static_cast<double>(usable_memory_bytes());
  host.disk_bytes_s = options.disk_mbyte_s ? *options.disk_mbyte_s * 1e6
                                           : measure_disk_bytes_s(config.run.project().folder());
  return host;
}

std::string table(const std::vector<ScaleRow>& rows) {
  std::string text = fmt::format(
      "{:>7} {:>6} {:<15} {:>8} {:>10} {:>10} {:>10} {:>10} {:>6} {:>10} {:>9} {:>8}  {}\n",
      "ranks", "hosts", "way", "samples", "compute", "exchange", "waited", "step", "scaled", "sent",
      "memory", "save", "stops");
  text +=
      fmt::format("{:>7} {:>6} {:<15} {:>8} {:>10} {:>10} {:>10} {:>10} {:>6} {:>10} {:>9} {:>8}\n",
                  "", "", "", "a rank", "ms", "ms", "ms", "ms", "%", "MB a host", "MB a host", "s");
  for (const ScaleRow& row : rows)
    text += fmt::format(
        "{:>7} {:>6} {:<15} {:>8.4g} {:>10.3f} {:>10.3f} {:>10.3f} {:>10.3f} {:>6.1f} {:>10.3f} "
        "{:>9.0f} {:>8.2f}  {}\n",
        row.ranks, row.hosts, row.way, row.samples_per_rank, 1e3 * row.compute_s,
        1e3 * row.exchange_s, 1e3 * row.waited_s, 1e3 * row.step_s, 100 * row.efficiency,
        1e-6 * row.sent_bytes, 1e-6 * row.host_memory_bytes, row.save_s, row.limit);
  const ScaleRow* limit = first_limit(rows);
  return text + (limit == nullptr
                     ? fmt::format("nothing stops scaling up to {} ranks\n", rows.back().ranks)
                     : fmt::format("first to stop scaling: {}, at {} ranks\n", limit->limit,
                                   limit->ranks));
}

Json json_of(const std::vector<ScaleRow>& rows) {
  Json all = Json::array();
  for (const ScaleRow& row : rows)
    all.push_back({{"ranks", row.ranks},
                   {"hosts", row.hosts},
                   {"way", row.way},
                   {"samples_per_rank", row.samples_per_rank},
                   {"compute_s", row.compute_s},
                   {"exchange_s", row.exchange_s},
                   {"waited_s", row.waited_s},
                   {"step_s", row.step_s},
                   {"samples_s", row.samples_s},
                   {"efficiency", row.efficiency},
                   {"sent_bytes", row.sent_bytes},
                   {"host_memory_bytes", row.host_memory_bytes},
                   {"save_s", row.save_s},
                   {"limit", row.limit}});
  return all;
}

double gradient_bytes(const ScaleJob& job) {
  double bytes = 0;
  for (const int64_t one : job.bucket_bytes) bytes += static_cast<double>(one);
  return bytes;
}

std::string basis(const ScaleOptions& options, const ScaleJob& job, const ScaleHost& host) {
  const std::string link = options.link_gbit
                               ? fmt::format("{} Gbit/s, {} us (as given)", *options.link_gbit,
                                             options.latency_us.value_or(0))
                               : "none";
  return fmt::format(
      "measured here, on CPUs, with {} thread(s): {:.3f} ms a step at {} samples, {:.3f} ms at {}; "
      "{:.0f} MB resident\n"
      "gradients: {:.3f} MB in {} bucket(s); saves: {:.3f} MB; link: {}; memory: {:.1f} GB/s read "
      "and written; disk: {:.0f} MB/s ({})\n"
      "modelled: one copy of the weights or a window inside a host; between hosts a direct "
      "exchange up to {}, a tree above; "
      "Lockstep has no ring on CPUs. Not modelled: NCCL on GPUs, ranks of a host in each other's "
      "way\n",
      at::get_num_threads(), 1e3 * job.large.cost.all_s(), job.large.samples,
      1e3 * job.small.cost.all_s(), job.small.samples, 1e-6 * job.rank_memory_bytes,
      1e-6 * gradient_bytes(job), job.bucket_bytes.size(), 1e-6 * job.save_bytes, link,
      1e-9 * host.memory_bytes_s, 1e-6 * host.disk_bytes_s,
      options.disk_mbyte_s ? "as given" : "measured", kDirectMembers);
}

}  // namespace

CommandResult scale_command(const ScaleOptions& options) {
  check_options(options);
  RunConfig config = load(options);
  const auto num_hosts = (options.ranks + options.ranks_per_host - 1) / options.ranks_per_host;
  dist::fit_bucket_bytes({.num_hosts = static_cast<int>(num_hosts),
                          .num_ranks = static_cast<int>(options.ranks),
                          .prunes = config.recipe.prunes()},
                         &config.sync);
  const auto num_cores = int64_t{num_usable_cores()};
  const ScaleHost host = host_of(options, config);  // before freed memory is kept
  keep_freed_memory();
  at::globalContext().setFlushDenormal(true);
  at::set_num_threads(static_cast<int>(
      config.run.threads > 0 ? config.run.threads
                             : std::max<int64_t>(1, num_cores / options.ranks_per_host)));
  const auto ranks = static_cast<int>(options.ranks);
  const MeasuredJob measured = measure_job(config, ranks);
  const std::vector<ScaleRow> dense = scale_rows(measured.dense, host, ranks);
  std::string text = basis(options, measured.dense, host) + "\ndense gradients\n" + table(dense);
  Json json = {{"gradient_bytes", gradient_bytes(measured.dense)},
               {"bucket_bytes", measured.dense.bucket_bytes},
               {"dense", json_of(dense)}};
  if (measured.final_kept_share < 1) {
    ScaleJob pruned = measured.dense;
    pruned.kept_share = measured.final_kept_share;
    const std::vector<ScaleRow> rows = scale_rows(pruned, host, ranks);
    text += fmt::format("\nat the last step: sparsity {:.1f} %, {:.1f} % of the gradients travel\n",
                        100 * measured.final_sparsity, 100 * pruned.kept_share) +
            table(rows);
    json["final_sparsity"] = measured.final_sparsity;
    json["last_step"] = json_of(rows);
  }
  if (!options.json_file.empty()) files::write_atomically(options.json_file, json.dump(2) + "\n");
  return {text, 0};
}

}  // namespace lockstep::daemon
