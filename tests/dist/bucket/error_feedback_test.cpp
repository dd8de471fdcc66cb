// sync.error_feedback: what rounding takes from a gradient is sent later, and is state of the run.
#include "dist/bucket/error_feedback.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/bits/bit_mask.h"
#include "base/error.h"
#include "dist/bucket/wire_rounding.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace error_feedback_test {

using tests::FlatModel;

constexpr double kLost = 1.0 / 512;  // of 1 + kLost: bfloat16 has 1 and then 1 + 1/128

SyncOptions options_of(const std::string& wire, bool shard = false) {
  return {.overlap = "false",
          .sparse_allreduce = "never",
          .comm_dtype = wire,
          .error_feedback = true,
          .shard_optimizer = shard};
}

/// Gradients by hand: rank 0 brings `value` everywhere, the others nothing, so that the sum is what
/// was rounded once.
class Exchange {
 public:
  explicit Exchange(Communicator& comm, const SyncOptions& options = options_of("bf16"))
      : comm_(comm), reducer_(comm, model_.buffers, model_.params, options) {}

  GlobalStepStats step(double value, int64_t factor = 1, int64_t expected_samples = 0) {
    reducer_.prepare_for_backward({.gradient_factor = factor});
    for (const FlatBuffer& buffer : model_.buffers)
      buffer.grads_E.fill_(comm_.rank() == 0 ? value * static_cast<double>(factor) : 0);
    return reducer_.finish({.loss_sum = 1,
                            .num_samples = 1,
                            .gradient_divisor = factor,
                            .expected_samples = expected_samples});
  }

  /// The mean of the first element that rank 0 owns; on rank 0.
  double first() const { return model_.buffers[0].grads_E[0].item<double>(); }

  /// This rank's errors, of all parameters.
  at::Tensor errors() {
    std::vector<at::Tensor> own;
    for (const StateEntry& entry : reducer_.state())
      if (entry.held)
        own.push_back(
            entry.tensor.view(-1).slice(0, entry.held->at(0).begin_E, entry.held->at(0).end_E));
    return at::cat(own);
  }

  FlatModel& model() { return model_; }
  GradientReducer& reducer() { return reducer_; }

 private:
  Communicator& comm_;
  FlatModel model_{2, 8};
  GradientReducer reducer_;
};

TEST(ErrorFeedback, RoundingTellsExactlyWhatItTook) {
  const at::Tensor values = at::sin(at::arange(300001, at::kFloat)) * 1e-8;
  for (const at::ScalarType wire_type : {at::kBFloat16, at::kHalf})
    for (const double scale : {1.0, std::exp2(30)}) {
      const at::Tensor wire = at::empty_like(values, wire_type);
      const at::Tensor errors = at::full_like(values, 7), back = at::empty_like(values);
      const at::Tensor largest = round_to_wire(values, scale, wire, errors);
      widen_from_wire(wire, scale, back);
      EXPECT_TRUE((back + errors).equal(values)) << wire_type << scale;
      EXPECT_EQ(round_to_wire(values, scale, wire).item<double>(), largest.item<double>());
    }
}

/// By hand: 4 steps of 1 + 1/512 are 4 + 1/128. Without feedback each would be 1.
TEST(ErrorFeedback, WhatWasLostIsSentWhenItIsLargeEnough) {
  for (const int world_size : {2, 3, 4})
    tests::run_ranks(world_size, [](Communicator& comm) {
      for (const bool shard : {false, true}) {
        Exchange exchange(comm, options_of("bf16", shard));
        double sum = 0;
        for (int step = 0; step < 4; ++step) {
          EXPECT_TRUE(exchange.step(1 + kLost).finite());
          sum += exchange.first();
        }
        if (comm.rank() != 0) continue;
        // The third brings 1 + 3/512, nearer to 1 + 1/128 than to 1.
        EXPECT_EQ(sum, 4 + 1.0 / 128) << "sharded: " << shard;
        EXPECT_EQ(exchange.errors().abs().max().item<double>(), 0);
      }
    });
}

/// Neither one that is not finite nor one that a rank leaves.
TEST(ErrorFeedback, AStepThatDoesNotCountLeavesNoTrace) {
  tests::run_ranks(2, [](Communicator& comm) {
    for (const char* wire : {"bf16", "fp16"}) {
      Exchange exchange(comm, options_of(wire));
      const double value = wire[0] == 'b' ? 1 + kLost : 1 + 1.0 / 4096;
      exchange.step(value);
      const at::Tensor before = exchange.errors().clone();
      EXPECT_EQ(before.count_nonzero().item<int64_t>() > 0, comm.rank() == 0) << wire;
      EXPECT_FALSE(exchange.step(std::numeric_limits<double>::infinity()).finite());
      EXPECT_FALSE(exchange.step(value, 1, /*expected_samples=*/3).finite());
      EXPECT_TRUE(exchange.errors().equal(before)) << wire;
    }
  });
}

/// Gradients that are multiplied by the loss scale, as it changes, send what those without do.
TEST(ErrorFeedback, ErrorsAreKeptWithoutTheLossScale) {
  tests::run_ranks(2, [](Communicator& comm) {
    Exchange plain(comm), scaled(comm);
    for (const int64_t factor : {1, 1024, 65536, 2, 2}) {
      plain.step(1 + kLost);
      scaled.step(1 + kLost, factor);
      EXPECT_TRUE(scaled.errors().equal(plain.errors())) << factor;
      EXPECT_EQ(scaled.first(), plain.first()) << factor;
    }
  });
}

TEST(ErrorFeedback, WhatIsDroppedOrResetOwesNothing) {
  tests::run_ranks(2, [](Communicator& comm) {
    Exchange exchange(comm);
    exchange.step(1 + kLost);
    const at::Tensor before = exchange.errors().clone();
    const FlatBuffer& weights = exchange.model().buffers[0];
    std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(weights.grads_E.numel())));
    keep_all(bits.data(), weights.grads_E.numel());
    const FlatSlice& last = weights.slices.back();  // layers.0.weight
    ASSERT_EQ(last.param, 0);
    drop(bits.data(), last.offset_E + 5);
    exchange.reducer().set_kept(0, bits);
    exchange.reducer().reset_errors(1);  // layers.0.bias
    at::Tensor expected = before.clone();
    expected[5] = 0;
    expected.narrow(0, last.num_elements, exchange.model().params[1].tensor.numel()).zero_();
    EXPECT_TRUE(exchange.errors().equal(expected));
    exchange.step(1 + kLost);
    EXPECT_EQ(exchange.errors()[5].item<double>(), 0) << "dropped ones make no errors";
  });
}

TEST(ErrorFeedback, EachRankHasARowOfItsOwnInASave) {
  tests::run_ranks(3, [](Communicator& comm) {
    Exchange exchange(comm);
    for (const StateEntry& entry : exchange.reducer().state()) {
      if (!entry.held) continue;
      EXPECT_TRUE(entry.key.starts_with("_lockstep/sync/errors_of_3_ranks/layers/")) << entry.key;
      EXPECT_EQ(entry.tensor.size(0), 3);
      EXPECT_EQ(entry.held->at(0).begin_E, comm.rank() * entry.tensor[0].numel());
      EXPECT_EQ(entry.value_if_missing, 0);
    }
  });
}

TEST(ErrorFeedback, OneRankAloneRoundsNothingAndKeepsNothing) {
  tests::run_ranks(1, [](Communicator& comm) {
    Exchange exchange(comm);
    exchange.step(1 + kLost);
    EXPECT_EQ(exchange.first(), 1 + kLost);
    EXPECT_EQ(exchange.reducer().state().size(), 1);
  });
}

}  // namespace error_feedback_test
}  // namespace lockstep::dist
