#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/plan/link_traffic.h"

/// What a step is expected to cost on more ranks than there are here: numbers in, rows out. Pure.
///
/// It models the sums of gradients that the code makes on CPUs: one copy of the weights or a shared
/// window inside a host, and between hosts a direct exchange (up to 16 hosts) or the tree of
/// dist/mpi/p2p. There is no ring. NCCL's rings and trees on GPUs are not modelled.
namespace lockstep::daemon {

/// Seconds of one rank's step without its peers.
struct ComputeCost {
  double before_s = 0;    ///< data and forward: no gradient is there yet
  double backward_s = 0;  ///< gradients appear, evenly over it
  double update_s = 0;    ///< of all weights; ranks may divide it
  double after_s = 0;     ///< what else waits for the sums
  double all_s() const { return before_s + backward_s + update_s + after_s; }
};

/// A measurement: this cost at so many samples of a rank.
struct ComputePoint {
  double samples = 1;
  ComputeCost cost;
};

struct ScaleJob {
  ComputePoint small, large;            ///< between and beyond them a line is drawn
  std::vector<int64_t> bucket_bytes;    ///< dense, as they travel, in the order of backward
  double kept_share = 1;                ///< of these bytes travels; less where weights are pruned
  bool overlaps = true;                 ///< between hosts, while backward goes on
  bool shards_optimizer = false;        ///< reduce_scatter and, after the update, all_gather
  bool has_window = true;               ///< else ranks of a host send messages to each other
  bool shares_weights = false;          ///< on one host: one copy, of which each updates its part
  double item_bytes = 4;                ///< of a gradient, as it travels
  std::optional<int64_t> global_batch;  ///< divided among ranks; nothing: each has the large batch
  double rank_memory_bytes = 0;         ///< resident, with the two below
  double weight_bytes = 0;
  double slot_bytes = 0;  ///< of the optimizer's state
  double save_bytes = 0;  ///< of all ranks together
  std::optional<int64_t> save_every_steps;
  std::optional<double> save_every_s;
};

struct ScaleHost {
  int ranks_per_host = 1;
  double link_bytes_s = 0;    ///< each way, of frames
  double latency_s = 0;       ///< of a message, one way
  double memory_bytes_s = 0;  ///< read and written by all ranks of a host together
  double memory_bytes = 0;    ///< 0: not known
  double disk_bytes_s = 0;    ///< of the disk that all hosts share
};

struct ScaleRow {
  int ranks = 1, hosts = 1;
  std::string way;  ///< as Exchange's name
  double samples_per_rank = 0;
  double compute_s = 0, exchange_s = 0;
  double waited_s = 0;  ///< of the exchange: not hidden behind backward
  double step_s = 0, samples_s = 0;
  double efficiency = 1;  ///< samples a second over ranks times those of one rank
  double sent_bytes = 0;  ///< by a host in a step, without the frames' headers
  double host_memory_bytes = 0;
  double save_s = 0;
  std::string limit;  ///< what stops scaling at this row; empty: nothing yet
};

/// Up to so many members each sends to each other (dist/mpi/world.h).
inline constexpr int kDirectMembers = 16;
/// Of a link's rate so much is left for data: MTU 1500, IPv4, TCP with time stamps.
inline constexpr double kProtocolShare = 1448.0 / 1514;

/// How so many ranks exchange, whatever the bytes.
struct Exchange {
  /// alone, one copy, window, messages, direct, tree; "window + direct" where hosts hold several
  std::string name;
  int ranks_in_window = 1;
  bool is_one_copy = false;  ///< of the weights: each rank adds up and updates its part
  LinkTraffic link;
  double chunk_bytes = 0;    ///< as they travel; after each the turns begin anew. 0: chunks overlap
  int turns_of_numbers = 0;  ///< of the step's numbers, behind all buckets
  double gathered_share = 0;  ///< of the bytes, behind the update: weights of a divided optimizer
};

Exchange exchange_of(const ScaleJob& job, int ranks, int ranks_per_host);
/// Seconds of one all-reduce of so many bytes.
double exchange_s(double bytes, const Exchange& exchange, const ScaleHost& host);
/// A row for each of 1, 2, 4, ... ranks up to `max_ranks`, and for that. Rank counts that do not
/// fill hosts are left out above one host.
std::vector<ScaleRow> scale_rows(const ScaleJob& job, const ScaleHost& host, int max_ranks);
/// The first row that names a limit; null: none does.
const ScaleRow* first_limit(const std::vector<ScaleRow>& rows);

}  // namespace lockstep::daemon
