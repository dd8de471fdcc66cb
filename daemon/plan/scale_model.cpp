#include "daemon/plan/scale_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lockstep::daemon {
namespace {

// Where a row reaches less of what more ranks promise over the row before, scaling has stopped.
constexpr double kLeastGain = 0.75;

// What leaders exchange along the tree at once: a slot of dist/mpi/make_communicator.cpp.
constexpr double kTreeSlotBytes = 1 << 20;

bool is_power_of_two(int number) { return std::has_single_bit(static_cast<unsigned>(number)); }

/// Above kDirectMembers leaders go along the tree only if each host holds a whole node of it.
bool goes_along_tree(int hosts, int ranks_per_host, bool is_flat) {
  if (is_flat) return hosts * ranks_per_host > kDirectMembers;
  return hosts > kDirectMembers && is_power_of_two(ranks_per_host);
}

TravelWidths widths_of(const ScaleJob& job, bool adds_partial_sums) {
  constexpr double kItemBytes = 4;
  const double wide = std::max(1.0, kItemBytes / job.item_bytes);
  // A divided optimizer gathers its weights, which are never rounded.
  return {.sums = adds_partial_sums ? wide : 1, .results = job.shards_optimizer ? wide : 1};
}

/// A divided optimizer's ranks exchange gradients before their update and weights behind it.
double gathered_share(const ScaleJob& job, const TravelWidths& widths) {
  return job.shards_optimizer ? widths.results / (widths.sums + widths.results) : 0;
}

double on_line(double a, double b, double share) { return std::max(0.0, a + (b - a) * share); }

ComputeCost cost_at(const ScaleJob& job, double samples) {
  const double range = job.large.samples - job.small.samples;
  const double share = range > 0 ? (samples - job.small.samples) / range : 1;
  const ComputeCost &a = job.small.cost, &b = job.large.cost;
  return {on_line(a.before_s, b.before_s, share), on_line(a.backward_s, b.backward_s, share),
          on_line(a.update_s, b.update_s, share), on_line(a.after_s, b.after_s, share)};
}

bool divides_update(const ScaleJob& job, const Exchange& exchange) {
  return job.shards_optimizer || exchange.is_one_copy;
}

/// Of all ranks of a host together, resident.
double host_memory_bytes(const ScaleJob& job, const Exchange& exchange, int ranks,
                         int ranks_of_host) {
  const double weight_copies = exchange.is_one_copy ? 1 : ranks_of_host;
  const double slot_copies =
      divides_update(job, exchange) ? static_cast<double>(ranks_of_host) / ranks : ranks_of_host;
  const double own_bytes = job.rank_memory_bytes - job.weight_bytes - job.slot_bytes;
  return own_bytes * ranks_of_host + job.weight_bytes * weight_copies +
         job.slot_bytes * slot_copies;
}

/// When the last bucket has arrived, from the begin of the step. Each begins when backward has made
/// its gradients and the one before has arrived. A divided optimizer's second half, the weights,
/// comes after all gradients.
double arrival_s(const ScaleJob& job, const ComputeCost& cost, const ScaleHost& host,
                 const Exchange& exchange, double* exchanged_s) {
  double all_bytes = 0, made = 0;
  for (const int64_t bytes : job.bucket_bytes) all_bytes += static_cast<double>(bytes);
  double gather_s = 0;
  // Of one copy nothing is packed, and cache lines are read for one kept element in them.
  const double share = exchange.is_one_copy ? 1 : job.kept_share;
  // Inside a host it is the cores of backward that add up.
  const bool overlaps = job.overlaps && exchange.link.turns > 0;
  double now = cost.before_s + (overlaps ? 0 : cost.backward_s);
  for (const int64_t bytes : job.bucket_bytes) {
    made += static_cast<double>(bytes);
    if (overlaps) now = std::max(now, cost.before_s + cost.backward_s * made / all_bytes);
    const double took = exchange_s(static_cast<double>(bytes) * share, exchange, host);
    *exchanged_s += took;
    now += took * (1 - exchange.gathered_share);
    gather_s += took * exchange.gathered_share;
  }
  const double numbers_s = exchange.turns_of_numbers * host.latency_s;
  *exchanged_s += numbers_s;
  return std::max(now, cost.before_s + cost.backward_s) + numbers_s + gather_s;
}

ScaleRow row_of(const ScaleJob& job, const ScaleHost& host, int ranks) {
  ScaleRow row;
  row.ranks = ranks;
  row.hosts = (ranks + host.ranks_per_host - 1) / host.ranks_per_host;
  const Exchange exchange = exchange_of(job, ranks, host.ranks_per_host);
  row.way = exchange.name;
  row.samples_per_rank =
      job.global_batch ? static_cast<double>(*job.global_batch) / ranks : job.large.samples;
  // The rank with most samples sets the pace.
  ComputeCost cost = cost_at(job, std::ceil(row.samples_per_rank));
  if (divides_update(job, exchange)) cost.update_s /= ranks;
  row.compute_s = cost.all_s();
  const double arrived_s = arrival_s(job, cost, host, exchange, &row.exchange_s);
  row.waited_s = std::max(0.0, arrived_s - cost.before_s - cost.backward_s);
  row.step_s = row.compute_s + row.waited_s;
  row.samples_s = row.samples_per_rank * ranks / row.step_s;
  for (const int64_t bytes : job.bucket_bytes)
    row.sent_bytes += static_cast<double>(bytes) * job.kept_share * exchange.link.sent;
  row.host_memory_bytes =
      host_memory_bytes(job, exchange, ranks, std::min(ranks, host.ranks_per_host));
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

Exchange exchange_of(const ScaleJob& job, int ranks, int ranks_per_host) {
  const int hosts = (ranks + ranks_per_host - 1) / ranks_per_host;
  if (ranks == 1) return {.name = "alone"};
  if (hosts == 1 && job.shares_weights)
    return {.name = "one copy", .ranks_in_window = ranks, .is_one_copy = true};
  if (hosts == 1)
    return {.name = job.has_window ? "window" : "messages",
            .ranks_in_window = ranks,
            .gathered_share = gathered_share(job, {})};
  // Along the tree no pieces are exchanged by leaders.
  const bool is_flat = ranks_per_host == 1 || !job.has_window ||
                       (job.shards_optimizer && goes_along_tree(hosts, ranks_per_host, false));
  const bool tree = goes_along_tree(hosts, ranks_per_host, is_flat);
  const TravelWidths widths = widths_of(job, tree || !is_flat);
  // The numbers are few bytes: with the notes of a direct exchange, else there and back.
  const int turns_of_numbers =
      ranks <= kDirectMembers ? 1 : along_tree(hosts, ranks_per_host, {}).turns;
  // A divided optimizer's ranks look at their own means alone and ask the others for theirs.
  Exchange exchange{.name = tree ? "tree" : "direct",
                    .turns_of_numbers = turns_of_numbers * (job.shards_optimizer ? 2 : 1),
                    .gathered_share = gathered_share(job, widths)};
  if (is_flat) {
    exchange.link = tree ? along_tree(hosts, ranks_per_host, widths)
                         : direct_between_ranks(hosts, ranks_per_host, widths);
    return exchange;
  }
  exchange.name = "window + " + exchange.name;
  exchange.ranks_in_window = ranks_per_host;
  exchange.link =
      tree ? along_tree(hosts, 1, widths) : direct_between_hosts(hosts, ranks_per_host, widths);
  exchange.chunk_bytes = tree ? kTreeSlotBytes / widths.sums : 0;
  return exchange;
}

double exchange_s(double bytes, const Exchange& exchange, const ScaleHost& host) {
  // Each rank's tensor is read once. It is written once too; with one copy of the weights, one sum
  // is written for all ranks.
  const int in_window = exchange.ranks_in_window;
  const int touches = exchange.is_one_copy ? in_window + 1 : 2 * in_window;
  const double window_s = in_window > 1 ? touches * bytes / host.memory_bytes_s : 0;
  if (exchange.link.turns == 0) return window_s;
  const double wire_s = bytes * exchange.link.awaited / (host.link_bytes_s * kProtocolShare);
  const double chunks =
      exchange.chunk_bytes > 0 ? std::max(1.0, std::ceil(bytes / exchange.chunk_bytes)) : 1;
  return std::max(window_s, wire_s) +  // chunks of both overlap
         exchange.link.turns * chunks * host.latency_s;
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
