#include "tests/dist/reducer/reducer_contract.h"

#include <cstdlib>
#include <limits>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/simd/bit_mask.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"

namespace lockstep::tests {
namespace {

using dist::Communicator;
using dist::GlobalStepStats;
using dist::GradientReducer;
using dist::SyncOptions;

constexpr int64_t kWidth = 13;  // rows and biases do not divide evenly among 2 to 4 ranks

/// Job to train: everything except how its gradients are sent.
struct Job {
  int num_steps = 4;
  int num_micro_batches = 1;
  bool unused = false;
  bool masked = false;
};

struct Trace {
  // by step
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> values;  ///< after the update
  std::vector<GlobalStepStats> totals;
  at::Tensor owned;  ///< bool: what of all this rank updates, as grads
};

/// Rank r brings (r + step) % 3 samples, rank 0 one more: uneven, and some ranks have none.
int64_t samples_of(int rank, int step) { return (rank + step) % 3 + (rank == 0 ? 1 : 0); }

at::Tensor inputs_of(int rank, int step, int64_t num_samples) {
  const at::Tensor numbers =
      at::arange(num_samples * kWidth, at::kFloat) + (100 * step + 17 * rank);
  return at::cos(numbers * 0.7).view({num_samples, kWidth});
}

/// Drops about two of three elements of the first buffer, others in each step.
std::vector<uint8_t> mask_of(const FlatBuffer& buffer, int step) {
  const int64_t num_elements = buffer.grads_E.numel();
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_elements)));
  keep_all(bits.data(), num_elements);
  for (int64_t i = 0; i < num_elements; ++i)
    if ((i * 7 + step) % 11 > 3) drop(bits.data(), i);
  return bits;
}

double backward(const FlatModel& model, const at::Tensor& inputs_BX) {
  const at::Tensor loss = model.forward(inputs_BX).square().sum();
  loss.backward();
  return loss.item<double>();
}

GlobalStepStats one_step(FlatModel* model, GradientReducer* reducer, const Job& job, int rank,
                         int step) {
  model->zero_grads();
  const int64_t num_samples = samples_of(rank, step);
  const at::Tensor inputs_BX = inputs_of(rank, step, num_samples);
  double loss_sum = 0;
  for (int64_t part = 0; part < job.num_micro_batches; ++part) {
    if (part + 1 == job.num_micro_batches)
      reducer->prepare_for_backward({.squared_grad_norm = true});
    const int64_t begin = num_samples * part / job.num_micro_batches;
    const int64_t end = num_samples * (part + 1) / job.num_micro_batches;
    if (begin < end) loss_sum += backward(*model, inputs_BX.narrow(0, begin, end - begin));
  }
  return reducer->finish({.loss_sum = loss_sum, .num_samples = num_samples});
}

at::Tensor owned_elements(const FlatModel& model, GradientReducer* reducer) {
  std::vector<at::Tensor> by_buffer;
  for (const FlatBuffer& buffer : model.buffers)
    by_buffer.push_back(at::zeros({buffer.values_E.numel()}, at::kBool));
  for (const ParamShard& own : reducer->local_shards())
    by_buffer[own.buffer].slice(0, own.begin_E, own.end_E).fill_(true);
  return at::cat(by_buffer);
}

/// Gradient descent, by each rank where it is its turn.
void update(FlatModel* model, GradientReducer* reducer) {
  for (const ParamShard& own : reducer->local_shards()) {
    const FlatBuffer& buffer = model->buffers[own.buffer];
    buffer.values_E.slice(0, own.begin_E, own.end_E)
        .sub_(buffer.grads_E.slice(0, own.begin_E, own.end_E), 0.1);
  }
  reducer->gather_values();
}

/// Enforces a mask, on every rank.
void prune(FlatModel* model, const std::vector<uint8_t>& bits) {
  const at::Tensor& values_E = model->buffers[0].values_E;
  zero_pruned(values_E.mutable_data_ptr(), bits.data(), values_E.numel(), 4);
}

Trace train(Communicator& comm, const Job& job, const SyncOptions& options) {
  FlatModel model(4, kWidth, job.unused);
  GradientReducer reducer(comm, model.buffers, model.params, options);
  Trace trace;
  for (int step = 0; step < job.num_steps; ++step) {
    if (job.masked && step % 2 == 1) {
      const std::vector<uint8_t> bits = mask_of(model.buffers[0], step);
      prune(&model, bits);
      reducer.set_kept(0, bits);
    }
    trace.totals.push_back(one_step(&model, &reducer, job, comm.rank(), step));
    trace.grads.push_back(model.all_grads().clone());
    update(&model, &reducer);
    trace.values.push_back(at::cat({model.buffers[0].values_E, model.buffers[1].values_E}));
  }
  trace.owned = owned_elements(model, &reducer);
  return trace;
}

void expect_same(const Trace& found, const Trace& expected, const std::string& what) {
  for (size_t step = 0; step < expected.grads.size(); ++step) {
    EXPECT_TRUE(found.grads[step]
                    .masked_select(found.owned)
                    .equal(expected.grads[step].masked_select(found.owned)))
        << what << ", step " << step;
    EXPECT_TRUE(found.values[step].equal(expected.values[step])) << what << ", step " << step;
    EXPECT_EQ(found.totals[step].loss_mean, expected.totals[step].loss_mean) << what;
    EXPECT_EQ(found.totals[step].num_samples, expected.totals[step].num_samples) << what;
    EXPECT_EQ(found.totals[step].squared_grad_norm, expected.totals[step].squared_grad_norm)
        << what;
  }
}

void expect_all_ways_alike(Communicator& comm, const Job& job, const std::string& what) {
  const Trace expected = train(comm, job, kWholeBuffers);
  for (const bool shard : {false, true})
    for (const char* overlap : {"false", "true"})
      for (const char* packed : {"never", "always", "auto"})
        for (const int64_t bucket_bytes : {int64_t{200}, int64_t{1} << 40}) {
          if (shard && (overlap[0] == 't') != (bucket_bytes == 200)) continue;  // time
          const SyncOptions options{.bucket_bytes = bucket_bytes,
                                    .overlap = overlap,
                                    .sparse_allreduce = packed,
                                    .shard_optimizer = shard};
          expect_same(train(comm, job, options), expected,
                      fmt::format("{}: overlap {}, packed {}, buckets of {}, {}", what, overlap,
                                  packed, bucket_bytes, shard ? "sharded" : "whole"));
        }
}

/// Each element has one owner, and shares are near-equal.
void expect_one_owner_each(Communicator& comm) {
  FlatModel model(4, kWidth);
  GradientReducer reducer(comm, model.buffers, model.params, {.shard_optimizer = true});
  const at::Tensor owned = owned_elements(model, &reducer).to(at::kLong);
  const int64_t num_own = owned.sum().item<int64_t>();
  comm.all_reduce(owned, dist::ReduceOp::kSum)->wait();
  EXPECT_TRUE(owned.equal(at::ones_like(owned)));
  const int64_t one_row_of_each_bucket = kWidth + 1;
  EXPECT_LE(std::abs(num_own - owned.numel() / comm.world_size()), one_row_of_each_bucket + 1);
}

/// Other bits than float32, but the same ones in every way.
void expect_ways_of_wire_alike(Communicator& comm) {
  const Job job{.masked = true};
  const Trace exact = train(comm, job, kWholeBuffers);
  const SyncOptions plain{.overlap = "false", .sparse_allreduce = "never", .comm_dtype = "bf16"};
  const Trace expected = train(comm, job, plain);
  if (comm.world_size() == 1) expect_same(expected, exact, "bf16");
  EXPECT_TRUE(at::allclose(expected.grads[0], exact.grads[0], 0.05, 0.02));
  for (const bool shard : {false, true})
    for (const char* packed : {"never", "always"}) {
      SyncOptions options = plain;
      options.bucket_bytes = 200;
      options.overlap = "true";
      options.sparse_allreduce = packed;
      options.shard_optimizer = shard;
      expect_same(train(comm, job, options), expected,
                  fmt::format("bf16, {}, shard {}", packed, shard));
    }
}

}  // namespace

void check_reducer_ways(Communicator& comm) {
  expect_all_ways_alike(comm, {}, "plain");
  expect_all_ways_alike(comm, {.unused = true}, "unused parameters");
  expect_all_ways_alike(comm, {.num_micro_batches = 2}, "micro-batches");
  expect_all_ways_alike(comm, {.num_steps = 5, .masked = true}, "masked");
  expect_ways_of_wire_alike(comm);
  expect_one_owner_each(comm);
}

}  // namespace lockstep::tests
