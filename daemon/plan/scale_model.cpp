#include "daemon/plan/scale_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lockstep::daemon {
namespace {

// Where a row reaches less of what more ranks promise over the row before, scaling has stopped.
constexpr double kLeastGain = 0.75;

bool is_power_of_two(int number) { return std::has_single_bit(static_cast<unsigned>(number)); }

/// Above kDirectHosts leaders go along the tree only if each host holds a whole node of it.
bool goes_along_tree(int hosts, const ScaleHost& host, bool is_flat) {
  const int senders = is_flat ? hosts * host.ranks_per_host : hosts;
  return senders > kDirectHosts && (is_flat || is_power_of_two(host.ranks_per_host));
}

std::string way_of(int ranks, int hosts, const ScaleHost& host, bool is_flat) {
  if (ranks == 1) return "alone";
  if (hosts == 1) return is_flat ? "messages" : "window";
  const std::string between = goes_along_tree(hosts, host, is_flat) ? "tree" : "direct";
  return host.ranks_per_host > 1 && !is_flat ? "window + " + between : between;
}

double on_line(double a, double b, double share) { return std::max(0.0, a + (b - a) * share); }

ComputeCost cost_at(const ScaleJob& job, double samples) {
  const double range = job.large.samples - job.small.samples;
  const double share = range > 0 ? (samples - job.small.samples) / range : 1;
  const ComputeCost &a = job.small.cost, &b = job.large.cost;
  return {on_line(a.before_s, b.before_s, share), on_line(a.backward_s, b.backward_s, share),
          on_line(a.after_s, b.after_s, share)};
}

/// When the last bucket has arrived, from the begin of the step. Each begins when backward has made
/// its gradients and the one before has arrived.
double arrival_s(const ScaleJob& job, const ComputeCost& cost, const ScaleHost& host, int ranks,
                 double* exchanged_s) {
  double all_bytes = 0, made = 0;
  for (const int64_t bytes : job.bucket_bytes) all_bytes += static_cast<double>(bytes);
  double now = cost.before_s + (job.overlaps ? 0 : cost.backward_s);
  for (const int64_t bytes : job.bucket_bytes) {
    made += static_cast<double>(bytes);
    if (job.overlaps) now = std::max(now, cost.before_s + cost.backward_s * made / all_bytes);
    const double took =
        exchange_s(static_cast<double>(bytes) * job.kept_share, ranks, host, job.is_flat);
    *exchanged_s += took;
    now += took;
  }
  return std::max(now, cost.before_s + cost.backward_s);
}

ScaleRow row_of(const ScaleJob& job, const ScaleHost& host, int ranks) {
  ScaleRow row;
  row.ranks = ranks;
  row.hosts = (ranks + host.ranks_per_host - 1) / host.ranks_per_host;
  row.way = way_of(ranks, row.hosts, host, job.is_flat);
  row.samples_per_rank =
      job.global_batch ? static_cast<double>(*job.global_batch) / ranks : job.large.samples;
  // The rank with most samples sets the pace.
  const ComputeCost cost = cost_at(job, std::ceil(row.samples_per_rank));
  row.compute_s = cost.all_s();
  const double arrived_s = arrival_s(job, cost, host, ranks, &row.exchange_s);
  row.waited_s = std::max(0.0, arrived_s - cost.before_s - cost.backward_s);
  row.step_s = row.compute_s + row.waited_s;
  row.samples_s = row.samples_per_rank * ranks / row.step_s;
  for (const int64_t bytes : job.bucket_bytes)
    row.sent_bytes +=
        sent_bytes(static_cast<double>(bytes) * job.kept_share, row.hosts, host, job.is_flat);
  row.host_memory_bytes = job.rank_memory_bytes * std::min(ranks, host.ranks_per_host);
  row.save_s = host.disk_bytes_s > 0 ? job.save_bytes / host.disk_bytes_s : 0;
  return row;
}

bool saves_meet(const ScaleJob& job, const ScaleRow& row) {
  if (job.save_every_steps && row.save_s > static_cast<double>(*job.save_every_steps) * row.step_s)
    return true;
  return job.save_every_s && row.save_s > *job.save_every_s;
}

/// Which part of the exchange is longest, by asking what goes if it were free.
std::string slowest_part(const ScaleJob& job, const ScaleHost& host, const ScaleRow& row) {
  ScaleHost no_latency = host, no_wire = host;
  no_latency.latency_s = 0;
  no_wire.link_bytes_s *= 1e9;
  const double without_latency = row_of(job, no_latency, row.ranks).step_s;
  const double without_wire = row_of(job, no_wire, row.ranks).step_s;
  if (row.hosts == 1) return "memory's speed in a host";
  return without_wire <= without_latency ? "wire" : "latency";
}

std::string limit_of(const ScaleJob& job, const ScaleHost& host, const ScaleRow& row,
                     const ScaleRow* before) {
  if (job.global_batch && *job.global_batch < row.ranks) return "batch per rank";
  if (host.memory_bytes > 0 && row.host_memory_bytes > host.memory_bytes) return "memory of a host";
  if (saves_meet(job, row)) return "shared disk at saves";
  if (before == nullptr) return "";
  const double promised = static_cast<double>(row.ranks) / before->ranks;
  if (row.samples_s / before->samples_s >= 1 + (promised - 1) * kLeastGain) return "";
  // Without any wait it would be no better: too little work is left for a rank.
  if (row.waited_s < row.step_s / 4 && job.global_batch) return "batch per rank";
  return slowest_part(job, host, row);
}

std::vector<int> rank_counts(const ScaleHost& host, int max_ranks) {
  std::vector<int> counts;
  for (int64_t ranks = 1; ranks < max_ranks; ranks *= 2)
    if (ranks <= host.ranks_per_host || ranks % host.ranks_per_host == 0)
      counts.push_back(static_cast<int>(ranks));
  counts.push_back(max_ranks);
  return counts;
}

}  // namespace

double sent_bytes(double bytes, int hosts, const ScaleHost& host, bool is_flat) {
  if (hosts == 1) return 0;
  const bool tree = goes_along_tree(hosts, host, is_flat);
  const int per_host = host.ranks_per_host;
  // Along the tree neighbours add first: a host's ranks are one sender where they are a node of it.
  const int senders_here = is_flat && !(tree && is_power_of_two(per_host)) ? per_host : 1;
  const double least = 2 * bytes * (hosts - 1) / hosts * senders_here;
  // A block of the tree that is not the first sends its sums once more (tree_exchange.h).
  const bool has_blocks = tree && !is_power_of_two(is_flat ? hosts * per_host : hosts);
  return has_blocks ? std::max(least, 3 * bytes * senders_here) : least;
}

double exchange_s(double bytes, int ranks, const ScaleHost& host, bool is_flat) {
  if (ranks == 1) return 0;
  const int hosts = (ranks + host.ranks_per_host - 1) / host.ranks_per_host;
  const int ranks_here = std::min(ranks, host.ranks_per_host);
  // Each rank's tensor is read once and written once.
  const double window_s = ranks_here > 1 ? 2 * bytes * ranks_here / host.memory_bytes_s : 0;
  if (hosts == 1) return window_s;
  const bool tree = goes_along_tree(hosts, host, is_flat);
  const int senders = is_flat ? ranks : hosts;
  const double turns = tree ? 2 * std::ceil(std::log2(senders)) : 2;
  const double wire_s =
      sent_bytes(bytes, hosts, host, is_flat) / (host.link_bytes_s * kProtocolShare);
  return std::max(window_s, wire_s) + turns * host.latency_s;  // chunks of both overlap
}

std::vector<ScaleRow> scale_rows(const ScaleJob& job, const ScaleHost& host, int max_ranks) {
  std::vector<ScaleRow> rows;
  for (const int ranks : rank_counts(host, max_ranks)) {
    ScaleRow row = row_of(job, host, ranks);
    if (!rows.empty()) row.efficiency = row.samples_s / rows.front().samples_s / ranks;
    row.limit = limit_of(job, host, row, rows.empty() ? nullptr : &rows.back());
    rows.push_back(std::move(row));
  }
  return rows;
}

const ScaleRow* first_limit(const std::vector<ScaleRow>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [](const ScaleRow& row) { return !row.limit.empty(); });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace lockstep::daemon
