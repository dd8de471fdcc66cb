#include "daemon/run/doctor.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "daemon/config/program.h"
#include "daemon/run/device.h"
#include "dist/nccl/load_nccl.h"

// Findings of `lockstep doctor`, and the measurement of links between ranks.
namespace lockstep::daemon {
std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& one : findings) {
    const char* kind = one.kind == Finding::kOk     ? "ok"
                       : one.kind == Finding::kNote ? "note"
                                                    : "FAULT";
    text += fmt::format("{:<5}  {:<18}  {}\n", kind, one.what, one.text);
    if (!one.cure.empty()) text += fmt::format("{:27}what to do: {}\n", "", one.cure);
  }
  return text;
}

int exit_code_of(const std::vector<Finding>& findings) {
  // Notes do not change the exit code: runs still work.
  const bool stops = std::any_of(findings.begin(), findings.end(),
                                 [](const Finding& one) { return one.kind == Finding::kFault; });
  return static_cast<int>(stops ? ExitCode::kUnavailable : ExitCode::kDone);
}

// Measures pairs of ranks in rounds. In each round every rank has at most one partner.

namespace {

// With more ranks, all pairs would take too long.
constexpr int kMaxRanksOfAllPairs = 16;
// Repetitions: unmeasured warm-up, small messages, large messages.
constexpr int kNumWarm = 5, kNumShort = 40, kNumLong = 6;
constexpr int64_t kLongBytes = 4 << 20;
constexpr double kMuchSlower = 3;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns the median. Robust against a few slow links.
double middle_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values.at(values.size() / 2);
}

/// Returns the median time of one way: half of a message and its reply.
double one_way_s(dist::Communicator& pair, const at::Tensor& values_K, int count) {
  std::vector<double> times;
  for (int i = -kNumWarm; i < count; ++i) {
    const double began_s = seconds_now();
    pair.broadcast(values_K, 0);
    pair.broadcast(values_K, 1);
    if (i >= 0) times.push_back((seconds_now() - began_s) / 2);
  }
  return middle_of(times);
}

/// Partner of each rank in this round; the rank itself means none.
using Round = std::vector<int>;

/// Returns rounds with all pairs, each once, by the circle method of tournaments.
std::vector<Round> rounds_of_all(int num_ranks) {
  const int num_places = num_ranks + num_ranks % 2;
  std::vector<Round> rounds;
  for (int round = 0; round + 1 < num_places; ++round) {
    Round partner_N(static_cast<size_t>(num_ranks));
    // One place is fixed, the others rotate; with an odd number of ranks one place is empty.
    for (int rank = 0; rank < num_ranks; ++rank) partner_N[static_cast<size_t>(rank)] = rank;
    for (int i = 0; i < num_places / 2; ++i) {
      const int a = i == 0 ? num_places - 1 : (round + i) % (num_places - 1);
      const int b = (round - i + num_places - 1) % (num_places - 1);
      if (a >= num_ranks || b >= num_ranks) continue;
      partner_N[static_cast<size_t>(a)] = b;
      partner_N[static_cast<size_t>(b)] = a;
    }
    rounds.push_back(std::move(partner_N));
  }
  return rounds;
}

/// Returns rounds with the pairs at distances that are powers of two.
std::vector<Round> rounds_of_some(int num_ranks) {
  std::vector<Round> rounds;
  for (int distance = 1; distance < num_ranks; distance *= 2) {
    Round partner_N(static_cast<size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int other = rank ^ distance;
      partner_N[static_cast<size_t>(rank)] = other < num_ranks ? other : rank;
    }
    rounds.push_back(std::move(partner_N));
  }
  return rounds;
}

std::string text_of(const Link& link) {
  return fmt::format("{} {} {} {}\n", link.first, link.second, link.latency_s,
                     link.bandwidth_bytes_s);
}

/// Measures this rank's link in a round. Returns it as text on the first rank of the pair, else an
/// empty text. Collective.
std::string measure(dist::Communicator& control, const Round& partner_N) {
  const int rank = control.rank();
  const int partner = partner_N.at(static_cast<size_t>(rank));
  // split() is collective, so ranks without a partner call it too.
  const auto pair = control.split(std::min(rank, partner), rank);
  if (partner == rank) return "";
  Link link{.first = rank, .second = partner};
  link.latency_s = one_way_s(*pair, at::zeros({1}), kNumShort);
  const at::Tensor long_K = at::zeros({kLongBytes / 4});
  link.bandwidth_bytes_s = static_cast<double>(kLongBytes) / one_way_s(*pair, long_K, kNumLong);
  return rank < partner ? text_of(link) : "";
}

/// Returns the GPUs that this rank sees; none without the CUDA module.
VisibleGpus seen_here(const std::string& node) {
  try {
    return visible_gpus(node, dist::nccl_device_ids());
  } catch (const Error&) {
    return visible_gpus(node, {});
  }
}

Finding hosts(const std::vector<std::string>& nodes_N) {
  std::map<std::string, int> counts;
  for (const std::string& node : nodes_N) ++counts[node];
  std::string text;
  for (const auto& [node, count] : counts)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", node, count);
  return {Finding::kOk, "ranks",
          fmt::format("{} on {} host(s): {}", nodes_N.size(), counts.size(), text)};
}

Finding programs(dist::Communicator& control, const std::string& mpi_version) {
  const VersionFacts facts = version_facts();
  try {
    dist::require_equal(control, "program or libraries",
                        fmt::format("{} {} {} {} {}", facts.version, facts.commit, facts.torch,
                                    facts.compiler, mpi_version));
    return {Finding::kOk, "programs", "the same on all ranks"};
  } catch (const Error& fault) {
    return {Finding::kFault, "programs", fault.what(),
            "install the same version of Lockstep, LibTorch and Open MPI on all hosts"};
  }
}

Finding devices(dist::Communicator& control, const dist::ProcessInfo& process) {
  const std::vector<VisibleGpus> all_N = gather_visible_gpus(control, seen_here(process.node));
  if (std::ranges::all_of(all_N, [](const VisibleGpus& rank) { return rank.ids.empty(); }))
    return {Finding::kOk, "devices", "CPUs: no rank sees a GPU"};
  const GpuChoice choice = choose_gpus(all_N);
  if (choice.fault.empty())
    return {Finding::kOk, "devices",
            all_N.front().may_share ? "a GPU for each rank, which ranks may share"
                                    : "a GPU for each rank"};
  return {Finding::kNote, "devices", choice.fault,
          "start as many ranks on a host as it has GPUs; until then all ranks use CPUs"};
}

}  // namespace

std::vector<Link> measure_links(dist::Communicator& control) {
  const int num_ranks = control.world_size();
  std::vector<Link> links;
  const auto rounds =
      num_ranks <= kMaxRanksOfAllPairs ? rounds_of_all(num_ranks) : rounds_of_some(num_ranks);
  for (const Round& partner_N : rounds) {
    for (const std::string& text : dist::gather_texts(control, measure(control, partner_N))) {
      std::istringstream words(text);
      Link link;
      if (words >> link.first >> link.second >> link.latency_s >> link.bandwidth_bytes_s)
        links.push_back(link);
    }
  }
  return links;
}

std::vector<Finding> link_findings(const std::vector<Link>& links,
                                   const std::vector<std::string>& nodes_N) {
  const auto node_of = [&](int rank) { return nodes_N.at(static_cast<size_t>(rank)); };
  const auto is_local = [&](const Link& link) {
    return node_of(link.first) == node_of(link.second);
  };
  std::map<bool, std::vector<double>> bandwidths;
  for (const Link& link : links) bandwidths[is_local(link)].push_back(link.bandwidth_bytes_s);
  std::vector<Finding> found;
  for (const Link& link : links) {
    const double middle = middle_of(bandwidths.at(is_local(link)));
    const bool is_slow = link.bandwidth_bytes_s * kMuchSlower < middle;
    found.push_back(
        {is_slow ? Finding::kNote : Finding::kOk,
         fmt::format("link {}-{}", link.first, link.second),
         fmt::format(
             "{:.1f} us, {:.2f} GB/s ({})", 1e6 * link.latency_s, 1e-9 * link.bandwidth_bytes_s,
             is_local(link) ? "in " + node_of(link.first)
                            : fmt::format("{} to {}", node_of(link.first), node_of(link.second))),
         is_slow
             ? fmt::format(
                   "others of its kind have {:.2f} GB/s: check this link, other programs on these "
                   "hosts, and the interfaces that Open MPI uses (--mca btl_tcp_if_include)",
                   1e-9 * middle)
             : ""});
  }
  return found;
}

std::vector<Finding> world_findings(dist::Communicator& control, const dist::ProcessInfo& process,
                                    const std::string& mpi_version) {
  const std::vector<std::string> nodes_N = dist::gather_texts(control, process.node);
  std::vector<Finding> found{hosts(nodes_N), programs(control, mpi_version),
                             devices(control, process)};
  for (Finding& one : link_findings(measure_links(control), nodes_N))
    found.push_back(std::move(one));
  return found;
}

}  // namespace lockstep::daemon
