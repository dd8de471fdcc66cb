#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/overrides.h"
#include "daemon/config/program.h"

namespace lockstep::cli {

inline constexpr int64_t kMostScaleRanks = 65536;

/// Formula of scale_rows(), for `lockstep plan --help`.
inline constexpr const char* kScaleFormula =
    "Formula of --scale, for N ranks on H hosts, with T = step, B = backward, U = update on one\n"
    "rank, S = bytes of gradients, R = payload rate of a host's link (95.6 % of --link-gbit),\n"
    "L = latency, s = 1/N if data.global_batch_size is divided among ranks, else 1:\n"
    "  compute    = U + (T - U) s\n"
    "  exchange   = 2 S (H - 1) / H / R + 2 ceil(log2 H) L\n"
    "  waited     = max(0, exchange - B s)    (sync.overlap: \"false\": B = 0)\n"
    "  step       = compute + waited\n"
    "  comm.      = waited / step\n"
    "  efficiency = T s / step";

/// Inputs of the model.
struct ScaleInputs {
  double step_s = 0;           ///< on one rank
  double backward_s = 0;       ///< of step_s; the exchange can overlap with it
  double update_s = 0;         ///< of step_s; independent of the batch
  double gradient_bytes = 0;   ///< as sent
  bool divides_batch = false;  ///< each of N ranks computes 1/N of step_s - update_s
  int64_t ranks_per_host = 1;
  double link_bytes_s = 0;  ///< of a host, each way
  double latency_s = 0;     ///< of a message, one way
};

struct ScaleRow {
  int64_t ranks = 1, hosts = 1;
  double compute_s = 0;
  double exchange_s = 0;     ///< all-reduce of the gradients between hosts
  double waited_s = 0;       ///< part of exchange_s that backward does not hide
  double step_s = 0;         ///< compute_s + waited_s
  double communication = 0;  ///< waited_s / step_s
  double efficiency = 1;     ///< samples a second over `ranks` times those of one rank
};

/// Rows of 1 rank, of one full host, then of 2, 4, ... hosts up to max_ranks.
std::vector<ScaleRow> scale_rows(const ScaleInputs& inputs, int64_t max_ranks);

struct ScaleOptions {
  std::string file;  ///< a run file
  std::vector<daemon::Override> overrides;
  int64_t ranks = 0;  ///< --scale
  int64_t ranks_per_host = 1;
  std::optional<double> link_gbit, latency_us;  ///< required for several hosts
  std::optional<double> step_ms;                ///< absent: steps are timed here
  double backward_ms = 0, update_ms = 0;        ///< parts of step_ms
  std::optional<double> gradient_mb;            ///< absent: counted from the network
  std::string json_file;                        ///< also write the rows here
};

/// Predicts step time, share of communication and scaling efficiency by a closed formula. The
/// command line has checked the range of each number. Throws Error(kUsage) for numbers that do not
/// fit each other.
daemon::CommandResult scale_command(const ScaleOptions& options);

}  // namespace lockstep::cli
