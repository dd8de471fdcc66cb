/// One training step without its update, with gradients exchanged in several ways, in turn:
///     launch/mpirun.sh 2 build/default/bench/sync_step --layers 784,4096,4096,10 --batch 8
///
/// Gradients are compared first: all ways that send float32 must give the same bits. Every round
/// takes one step in each way, so that a shared machine's slow moments fall on all of them. A way's
/// ratio is the median over the rounds of the first way's time over its own. With --sparsity the
/// masks are random and fixed.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/bit_mask.h"
#include "base/error.h"
#include "bench/pairs.h"
#include "dist/bucket_plan.h"
#include "dist/gradient_reducer.h"
#include "dist/mpi/world.h"
#include "model/mlp.h"
#include "optim/param_arena.h"

namespace lockstep::bench {
namespace {

struct Options {
  std::vector<int64_t> layers{784, 1024, 1024, 10};
  int64_t batch = 32;
  double sparsity = 0;
  int64_t bucket_bytes = 4194304;
  int rounds = 15;
  std::vector<std::string> ways{"blocking", "overlap"};
};

/// "overlap+packed+bf16": what is not named is off.
dist::SyncOptions sync_of(const std::string& way, int64_t bucket_bytes) {
  const auto has = [&](const char* part) { return way.find(part) != std::string::npos; };
  return {.bucket_bytes = bucket_bytes,
          .overlap = has("overlap") ? "true"
                     : has("auto")  ? "auto"
                                    : "false",
          .packed = has("packed") ? "always"
                    : has("auto") ? "auto"
                                  : "never",
          .wire = has("bf16")   ? "bf16"
                  : has("fp16") ? "fp16"
                                : "fp32"};
}

std::vector<std::vector<int64_t>> layout(const ParamTable& params, int64_t bucket_bytes) {
  std::vector<dist::PlannedParam> planned;
  for (const Param& param : params)
    planned.push_back(
        {.num_bytes = static_cast<int64_t>(param.tensor.nbytes()), .group = group_of(param)});
  return dist::plan_buckets(planned, bucket_bytes);
}

/// Keeps about (1 - sparsity) of a weight buffer's elements, spread by a multiplicative hash.
std::vector<uint8_t> mask_of(const FlatBuffer& buffer, double sparsity) {
  const int64_t num_elements = buffer.grads_E.numel();
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_elements)));
  keep_all(bits.data(), num_elements);
  if (buffer.group != kWeightGroup) return bits;
  const auto limit = static_cast<uint32_t>(sparsity * 4294967295.0);
  for (int64_t i = 0; i < num_elements; ++i)
    if (static_cast<uint32_t>(i) * 2654435761U < limit) drop(bits.data(), i);
  return bits;
}

class Bench {
 public:
  Bench(const Options& options, dist::Communicator& comm)
      : options_(options),
        model_(options.layers, "relu", 17),
        arena_(model_.params(), layout(model_.params(), options.bucket_bytes), at::kCPU),
        inputs_BX_(
            at::sin(at::arange(options.batch * options.layers.front(), at::kFloat) + comm.rank())
                .view({options.batch, -1})) {
    for (const std::string& way : options.ways) {
      reducers_.push_back(std::make_unique<dist::GradientReducer>(
          comm, arena_.buffers(), model_.params(), sync_of(way, options.bucket_bytes)));
      if (options.sparsity == 0) continue;
      for (size_t i = 0; i < arena_.num_buffers(); ++i)
        reducers_.back()->set_kept(i, mask_of(arena_.buffers()[i], options.sparsity));
    }
  }

  dist::StepTotals step(size_t way) {
    arena_.zero_grads();
    reducers_[way]->begin_backward();
    const at::Tensor loss = model_.forward(inputs_BX_).square().sum();
    loss.backward();
    return reducers_[way]->finish({.loss_sum = loss.item<double>(), .num_samples = options_.batch});
  }

  void compare() {
    at::Tensor first;
    for (size_t way = 0; way < options_.ways.size(); ++way) {
      (void)step(way);
      std::vector<at::Tensor> parts;
      for (const FlatBuffer& buffer : arena_.buffers()) parts.push_back(buffer.grads_E);
      const at::Tensor grads = at::cat(parts);
      if (way == 0) first = grads;
      const bool is_exact = options_.ways[way].find("16") == std::string::npos;
      check(!is_exact || grads.equal(first), "gradients differ: nothing was measured");
    }
  }

 private:
  const Options& options_;
  model::Mlp model_;
  optim::ParamArena arena_;
  at::Tensor inputs_BX_;
  std::vector<std::unique_ptr<dist::GradientReducer>> reducers_;
};

struct Times {
  std::vector<double> step_ms, ratio, wait_ms, reduce_ms, overlapped_ms;
  double mb = 0;
};

std::vector<Times> measure(const Options& options, Bench* bench) {
  std::vector<Times> times(options.ways.size());
  const int num_warm = 15;  // `auto` has made up its mind by then
  for (int round = -num_warm; round < options.rounds; ++round) {
    double first_ms = 0;
    for (size_t way = 0; way < options.ways.size(); ++way) {
      const auto start = std::chrono::steady_clock::now();
      const dist::StepTotals totals = bench->step(way);
      const double ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count();
      if (way == 0) first_ms = ms;
      if (round < 0) continue;
      times[way].step_ms.push_back(ms);
      times[way].ratio.push_back(first_ms / ms);
      times[way].wait_ms.push_back(totals.wait_s * 1e3);
      times[way].reduce_ms.push_back(totals.reduce_s * 1e3);
      times[way].overlapped_ms.push_back(totals.overlapped_s * 1e3);
      times[way].mb = static_cast<double>(totals.bytes_reduced) / 1e6;
    }
  }
  return times;
}

Options read(int argc, char** argv) {
  Options options;
  CLI::App app{"A step with gradients exchanged in several ways, in turn; start it with mpirun"};
  app.add_option("--layers", options.layers, "widths of an MLP")->delimiter(',');
  app.add_option("--batch", options.batch, "samples of each rank")->capture_default_str();
  app.add_option("--sparsity", options.sparsity)->check(CLI::Range(0.0, 1.0));
  app.add_option("--bucket-bytes", options.bucket_bytes)->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--ways", options.ways, "words: blocking, overlap, packed, auto, bf16, fp16")
      ->delimiter(',');
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    std::exit(app.exit(fault));
  }
  return options;
}

void run_ways(const Options& options) {
  dist::mpi::World world;
  const auto comm = world.make_communicator();
  at::set_num_threads(1);
  Bench bench(options, *comm);
  bench.compare();
  const std::vector<Times> times = measure(options, &bench);
  if (comm->rank() != 0) return;
  for (size_t way = 0; way < times.size(); ++way)
    fmt::print(
        "{:24s} step {:8.2f} ms, {:.3f} x the first; {:.1f} MB, reduce {:.2f} ms, of it "
        "hidden {:.2f}; finish() waited {:.2f}\n",
        options.ways[way], median(times[way].step_ms), median(times[way].ratio), times[way].mb,
        median(times[way].reduce_ms), median(times[way].overlapped_ms), median(times[way].wait_ms));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);  // else each step's large tensors are fresh pages
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  lockstep::bench::run_ways(lockstep::bench::read(argc, argv));
  return 0;
}
