// All-reduce of float32 over all ranks, ours and MPI_Allreduce in turn:
//     launch/mpirun.sh 2 build/default/bench/allreduce
//
// --call reduce_scatter+all_gather: both after one another, as a divided optimizer does.
//
// Sums are compared first; who is first alternates. Buffers exist and are touched before the clock
// starts; a time is that of the slowest rank, from a barrier on. The printed ratio is the median
// over the pairs of MPI's time over ours, so that a shared machine's slow moments fall on both.
//
// The floor is what every reduction in place has to do at least: each rank, by itself and at the
// same time as the others, reads its tensor once and writes it once.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <mpi.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "dist/mpi/world.h"

namespace lockstep::bench {
namespace {

constexpr const char* kBoth = "reduce_scatter+all_gather";

struct Options {
  double mib = 64;
  int pairs = 9;
  int calls = 1;  ///< in one timing: more for small tensors
  std::string call = "all_reduce";
  std::string way = "window";
  std::string peer = "mpi";
  double goal = 0;
  double link_gbit = 0;
  double link_goal = 97;
};

Options read(int argc, char** argv) {
  Options options;
  CLI::App app{"All-reduce of float32, ours and MPI_Allreduce in turn; start it with mpirun"};
  app.add_option("--mib", options.mib, "size of the tensor")->capture_default_str();
  app.add_option("--pairs", options.pairs, "timings of each")->capture_default_str();
  app.add_option("--calls", options.calls, "all-reduces in one timing")->capture_default_str();
  app.add_option("--call", options.call)
      ->check(CLI::IsMember({"all_reduce", kBoth}))
      ->capture_default_str();
  app.add_option("--way", options.way)
      ->check(CLI::IsMember({"window", "messages"}))
      ->capture_default_str();
  app.add_option("--peer", options.peer)
      ->check(CLI::IsMember({"mpi", "none"}))
      ->capture_default_str();
  app.add_option("--goal", options.goal, "least ratio, 0: none")->capture_default_str();
  app.add_option("--link-gbit", options.link_gbit,
                 "what the link between two hosts carries each way: prints the share of it used");
  app.add_option("--link-goal", options.link_goal, "least share, percent")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    std::exit(app.exit(fault));
  }
  return options;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Milliseconds of the slowest rank for one call.
double time_ms(int calls, const std::function<void()>& body) {
  check(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS, "MPI_Barrier");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) body();
  double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() /
      calls;
  check(MPI_Allreduce(MPI_IN_PLACE, &ms, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD) == MPI_SUCCESS,
        "MPI_Allreduce");
  return ms;
}

struct Contest {
  at::Tensor values_K;
  std::function<void()> ours, theirs;
};

/// Item k of rank r is (k mod 251) + r: every order of addition has the same sum.
void check_sums(Contest& contest, int rank, int num_ranks) {
  const at::Tensor values_K = contest.values_K;
  const at::Tensor start_K = at::arange(values_K.numel(), at::kLong).remainder(251).to(at::kFloat);
  const at::Tensor sum_K = start_K * num_ranks + num_ranks * (num_ranks - 1) / 2;
  for (const auto& one : {contest.ours, contest.theirs}) {
    values_K.copy_(start_K + rank);
    one();
    check(values_K.equal(sum_K), "a wrong sum: nothing was measured");
  }
  values_K.zero_();
}

void check_call(int code, const char* name) { check(code == MPI_SUCCESS, name); }

Contest all_reduces(dist::Communicator& comm, const at::Tensor& values_K) {
  const auto ours = [&comm, values_K] { comm.all_reduce(values_K, dist::ReduceOp::kSum)->wait(); };
  const auto theirs = [values_K] {
    check_call(
        MPI_Allreduce(MPI_IN_PLACE, values_K.mutable_data_ptr(), static_cast<int>(values_K.numel()),
                      MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
        "MPI_Allreduce");
  };
  return {values_K, ours, theirs};
}

Contest both_halves(dist::Communicator& comm, const at::Tensor& values_K) {
  const int64_t piece = values_K.numel() / comm.world_size();
  const at::Tensor own_P = values_K.narrow(0, piece * comm.rank(), piece);
  const auto ours = [&comm, values_K, own_P] {
    comm.reduce_scatter(own_P, values_K)->wait();
    comm.all_gather(values_K, own_P)->wait();
  };
  const auto theirs = [values_K, sum_P = at::zeros_like(own_P)] {
    const auto num_items = static_cast<int>(sum_P.numel());
    check_call(MPI_Reduce_scatter_block(values_K.const_data_ptr(), sum_P.mutable_data_ptr(),
                                        num_items, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
               "MPI_Reduce_scatter_block");
    check_call(MPI_Allgather(sum_P.const_data_ptr(), num_items, MPI_FLOAT,
                             values_K.mutable_data_ptr(), num_items, MPI_FLOAT, MPI_COMM_WORLD),
               "MPI_Allgather");
  };
  return {values_K, ours, theirs};
}

/// Times by pair; ratio: theirs over ours.
struct Times {
  std::vector<double> ours_ms, theirs_ms, floor_ms, ratio;
};

void print(const Options& options, const dist::ProcessInfo& place, const Times& times) {
  const int num_ranks = place.world_size;
  const double bytes = options.mib * (1 << 20), ours_ms = median(times.ours_ms);
  const double moved = bytes * 2 * (num_ranks - 1) / num_ranks;
  fmt::print(
      "{} of {} MiB float32, {} ranks on {} hosts, {}: median {:.3f} ms (least {:.3f}), bus {:.2f} "
      "GB/s\n",
      options.call, options.mib, num_ranks, place.num_nodes, options.way, ours_ms,
      *std::min_element(times.ours_ms.begin(), times.ours_ms.end()), moved / ours_ms / 1e6);
  fmt::print("floor: {:.3f} ms to read and write each rank's tensor once\n",
             median(times.floor_ms));
  if (options.peer == "mpi") {
    const std::vector<double>& ratios = times.ratio;
    const auto [lowest, highest] = std::minmax_element(ratios.begin(), ratios.end());
    fmt::print(
        "{}: median {:.3f} ms; median ratio of {} pairs {:.2f} ({:.2f} to {:.2f})",
        options.call == kBoth ? "MPI_Reduce_scatter_block and MPI_Allgather" : "MPI_Allreduce",
        median(times.theirs_ms), ratios.size(), median(ratios), *lowest, *highest);
    if (options.goal > 0)
      fmt::print(", goal {:.2f}: {}", options.goal,
                 median(ratios) >= options.goal ? "met" : "NOT MET");
    fmt::print("\n");
  }
  if (options.link_gbit > 0) {
    // Bytes that each host must send at least, for any number of its ranks.
    const double sent = bytes * 2 * (place.num_nodes - 1) / place.num_nodes;
    const double share = 100 * sent * 8 / (ours_ms * 1e-3) / (options.link_gbit * 1e9);
    fmt::print("{:.1f} % of a link of {} Gbit/s, goal {} %: {}\n", share, options.link_gbit,
               options.link_goal, share >= options.link_goal ? "met" : "NOT MET");
  }
}

void run(const Options& options) {
  dist::mpi::World world;
  const auto comm = world.make_communicator({.shared_window = options.way == "window"});
  const auto piece =
      static_cast<int64_t>(options.mib * (1 << 20) / sizeof(float)) / comm->world_size();
  const at::Tensor values_K = at::zeros({piece * comm->world_size()}, at::kFloat);
  Contest contest =
      options.call == kBoth ? both_halves(*comm, values_K) : all_reduces(*comm, values_K);
  if (options.peer == "none") contest.theirs = contest.ours;
  check_sums(contest, comm->rank(), comm->world_size());

  const auto read_and_write = [&] { contest.values_K.add_(1); };

  Times times;
  for (int pair = 0; pair <= options.pairs; ++pair) {
    const auto their_ms = [&] {
      return options.peer == "none" ? 0 : time_ms(options.calls, contest.theirs);
    };
    const bool are_theirs_first = pair % 2 == 1;
    double theirs_ms = are_theirs_first ? their_ms() : 0;
    const double ours_ms = time_ms(options.calls, contest.ours);
    if (!are_theirs_first) theirs_ms = their_ms();
    const double floor_ms = time_ms(options.calls, read_and_write);
    if (pair == 0) continue;  // it warms what it touches
    times.ours_ms.push_back(ours_ms);
    times.theirs_ms.push_back(theirs_ms);
    times.floor_ms.push_back(floor_ms);
    times.ratio.push_back(theirs_ms / ours_ms);
  }
  if (comm->rank() == 0) print(options, world.process_info(), times);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  const c10::InferenceMode no_gradients;
  at::set_num_threads(1);
  lockstep::bench::run(lockstep::bench::read(argc, argv));
  return 0;
}
