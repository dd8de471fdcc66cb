#include "dist/reducer/wire_scale.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/bits/bit_mask.h"
#include "dist/bucket/wire_rounding.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/dist/spy_communicator.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace wire_scale_test {

using tests::FlatModel;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(WireScale, TheBoundLiesBelowTwoToTheEighth) {
  WireScale scale(true);
  EXPECT_TRUE(scale.lacks_bound());
  EXPECT_EQ(scale.value(), 1);
  for (const double bound : {1e-38, 1e-9, 0.9, 1.0, 200.0, 1e4, 65504.0, 1e38}) {
    scale.follow(bound);
    EXPECT_FALSE(scale.lacks_bound());
    EXPECT_EQ(std::exp2(std::round(std::log2(scale.value()))), scale.value()) << "a power of two";
    EXPECT_GE(scale.value() * bound, bound > 1e-30 ? 128 : 0) << bound;
    EXPECT_LT(scale.value() * bound, 256.0001) << bound;
  }
  for (const double none : {0.0, kInfinity, std::nan("")}) {
    scale.follow(1);
    scale.follow(none);
    EXPECT_TRUE(scale.lacks_bound()) << none;
  }
}

TEST(WireScale, OtherWiresHaveNone) {
  WireScale scale(false);
  scale.follow(1e-9);
  EXPECT_FALSE(scale.lacks_bound());
  EXPECT_EQ(scale.value(), 1);
  EXPECT_TRUE(scale.state().empty());
}

TEST(WireRounding, ScalesRoundsAndTellsTheLargest) {
  const at::Tensor values = at::tensor({3e-9F, -5e-9F, 0.0F, 1e-12F});
  const at::Tensor wire = at::empty({4}, at::kHalf), back = at::empty({4});
  const double scale = std::exp2(35);
  const double largest = round_to_wire(values, scale, wire).item<double>();
  EXPECT_NEAR(largest, 5e-9, 5e-9 / 2048);
  widen_from_wire(wire, scale, back);
  EXPECT_TRUE(at::allclose(back, values, 1.0 / 2048, 0)) << back;
  EXPECT_EQ(round_to_wire(values, 1, wire).item<double>(), 0) << "all are lost";
  for (const double bad : {std::nan(""), kInfinity, -kInfinity, 70000.0})
    EXPECT_EQ(round_to_wire(at::full({1}, bad, at::kFloat), 1, wire.narrow(0, 0, 1)).item<double>(),
              kInfinity)
        << bad;
  EXPECT_EQ(largest_magnitude(values.narrow(0, 0, 0)).item<double>(), 0);
  EXPECT_EQ(largest_magnitude(at::full({2}, std::nan(""), at::kFloat)).item<double>(), kInfinity);
}

/// More items than a block has.
TEST(WireRounding, LongRunsAreRoundedWhole) {
  const at::Tensor values = at::sin(at::arange(300001, at::kFloat)) * 1e-8;
  const at::Tensor wire = at::empty_like(values, at::kHalf), back = at::empty_like(values);
  const double scale = std::exp2(30);
  const double largest = round_to_wire(values, scale, wire).item<double>();
  EXPECT_TRUE(wire.equal((values * scale).to(at::kHalf)));
  EXPECT_EQ(largest, wire.abs().max().item<double>() / scale);
  widen_from_wire(wire, scale, back);
  EXPECT_TRUE(back.equal(wire.to(at::kFloat) / scale));
}

/// How the gradients travel, besides as float16.
struct Way {
  bool shard = false;
  bool packed = false;
  int64_t bucket_bytes = 1 << 20;
};

std::string text_of(const Way& way) {
  return fmt::format("{}, {}, buckets of {}", way.shard ? "sharded" : "whole",
                     way.packed ? "packed" : "dense", way.bucket_bytes);
}

/// A model whose gradients are written by hand, and its reducer.
class Exchange {
 public:
  Exchange(Communicator& comm, const Way& way, bool masked)
      : comm_(comm),
        reducer_(comm, model_.buffers, model_.params,
                 {.bucket_bytes = way.bucket_bytes,
                  .overlap = "false",
                  .sparse_allreduce = way.packed ? "always" : "never",
                  .comm_dtype = "fp16",
                  .shard_optimizer = way.shard}) {
    if (!masked) return;
    const int64_t num_elements = model_.buffers[0].grads_E.numel();
    std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_elements)));
    keep_all(bits.data(), num_elements);
    for (int64_t i = 0; i < num_elements; ++i)
      if (i % 3 != 0) drop(bits.data(), i);
    reducer_.set_kept(0, bits);
    for (int64_t i = 0; i < num_elements; ++i) kept_.push_back(is_kept(bits.data(), i));
  }

  /// What rank r brings: of about this size, and 1000 times as much where it will be dropped.
  at::Tensor contribution(int rank, double size) const {
    at::Tensor all = at::cos(at::arange(model_.all_grads().numel(), at::kDouble) * 0.37 + rank);
    all.add_(at::sign(all)).mul_(size);
    for (size_t i = 0; i < kept_.size(); ++i)
      if (!kept_[i]) all[static_cast<int64_t>(i)].mul_(1000);
    return all;
  }

  GlobalStepStats step(double size) {
    reducer_.prepare_for_backward();
    const at::Tensor mine = contribution(comm_.rank(), size).to(at::kFloat);
    int64_t offset = 0;
    for (const FlatBuffer& buffer : model_.buffers) {
      buffer.grads_E.copy_(mine.narrow(0, offset, buffer.grads_E.numel()));
      offset += buffer.grads_E.numel();
    }
    return reducer_.finish({.loss_sum = 1, .num_samples = 1, .gradient_divisor = 1});
  }

  /// The sums that a step of this size has, in float64.
  at::Tensor expected(double size) const {
    at::Tensor sum = at::zeros_like(contribution(0, size));
    for (int r = 0; r < comm_.world_size(); ++r) sum += contribution(r, size);
    for (size_t i = 0; i < kept_.size(); ++i)
      if (!kept_[i]) sum[static_cast<int64_t>(i)] = 0;
    return sum;
  }

  /// The gradients of all owners; without shards, this rank's.
  at::Tensor means() {
    at::Tensor all = at::zeros_like(model_.all_grads());
    for (const ParamShard& own : reducer_.local_shards()) {
      const int64_t begin = own.begin_E + (own.buffer == 0 ? 0 : model_.buffers[0].grads_E.numel());
      all.narrow(0, begin, own.end_E - own.begin_E)
          .copy_(model_.buffers[own.buffer].grads_E.slice(0, own.begin_E, own.end_E));
    }
    if (reducer_.is_sharded()) comm_.all_reduce(all, ReduceOp::kSum)->wait();
    return all;
  }

  GradientReducer& reducer() { return reducer_; }

 private:
  Communicator& comm_;
  FlatModel model_{4, 12};
  GradientReducer reducer_;
  std::vector<bool> kept_;
};

void expect_close(const at::Tensor& found, const at::Tensor& expected, double size,
                  const std::string& what) {
  // Two roundings to 11 bits, of contributions of up to twice the size.
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1.0 / 2048, size * 8 / 2048)) << what;
  EXPECT_EQ((found == 0).sum().item<int64_t>(), (expected == 0).sum().item<int64_t>()) << what;
}

/// Every size, in the first step, whose bound is asked for, and in later ones.
TEST(WireScale, NeitherSmallNorLargeGradientsAreLost) {
  for (const int world_size : {2, 3, 4})
    tests::run_ranks(world_size, [](Communicator& comm) {
      for (const bool masked : {false, true})
        for (const double size : {1e-30, 1e-9, 1.0, 1e4, 1e30}) {
          Exchange plain(comm, {}, masked);
          for (int step = 0; step < 3; ++step) {
            EXPECT_TRUE(plain.step(size).finite());
            expect_close(plain.means(), plain.expected(size), size, fmt::format("{}", size));
          }
          const at::Tensor bits = plain.means();
          for (const bool shard : {false, true})
            for (const bool packed : {false, true})
              for (const int64_t bucket_bytes : {300, 1 << 20}) {
                const Way way{shard, packed, bucket_bytes};
                Exchange other(comm, way, masked);
                for (int step = 0; step < 3; ++step) EXPECT_TRUE(other.step(size).finite());
                EXPECT_TRUE(other.means().equal(bits)) << text_of(way) << ", size " << size;
              }
          at::Tensor first = bits.clone();
          comm.broadcast(first, 0);
          EXPECT_TRUE(bits.equal(first)) << "rank " << comm.rank();
        }
    });
}

TEST(WireScale, GradientsMayGrowAHundredTimesFromStepToStep) {
  tests::run_ranks(2, [](Communicator& comm) {
    Exchange exchange(comm, {}, false);
    for (const double size : {1e-9, 1e-7, 1e-5, 1e-3, 0.1, 10.0, 1e-6, 1e-9}) {
      EXPECT_TRUE(exchange.step(size).finite()) << size;
      EXPECT_GT(exchange.means().abs().max().item<double>(), size) << size;
    }
  });
}

TEST(WireScale, AStepThatOverflowsDoesNotCountAndTheNextOneDoes) {
  tests::run_ranks(2, [](Communicator& comm) {
    for (const bool shard : {false, true}) {
      Exchange exchange(comm, {.shard = shard}, false);
      EXPECT_TRUE(exchange.step(1e-9).finite());
      EXPECT_FALSE(exchange.step(1e4).finite());
      EXPECT_TRUE(exchange.step(1e4).finite());
      expect_close(exchange.means(), exchange.expected(1e4), 1e4, "after the overflow");
    }
  });
}

/// Rank 1 takes back nearly all that rank 0 brings: the sums are small, what travels is not.
TEST(WireScale, ContributionsThatCancelDoNotOverflow) {
  tests::run_ranks(2, [](Communicator& comm) {
    FlatModel model(2, 4);
    GradientReducer reducer(comm, model.buffers, model.params,
                            {.overlap = "false", .comm_dtype = "fp16"});
    for (int step = 0; step < 4; ++step) {
      reducer.prepare_for_backward();
      for (const FlatBuffer& buffer : model.buffers)
        buffer.grads_E.fill_(comm.rank() == 0 ? 4096.0 : -4080.0);
      EXPECT_TRUE(reducer.finish({.loss_sum = 1, .num_samples = 1}).finite()) << step;
      EXPECT_EQ(model.all_grads().sum().item<double>(), 8.0 * model.all_grads().numel()) << step;
    }
  });
}

TEST(WireScale, AskingForTheBoundIsAMessageOfTheFirstStepAlone) {
  tests::run_ranks(2, [](Communicator& comm) {
    tests::SpyCommunicator spy(comm);
    Exchange exchange(spy, {}, false);
    const auto reductions_of_step = [&] {
      const int before = spy.num_reductions;
      exchange.step(1e-9);
      return spy.num_reductions - before;
    };
    EXPECT_EQ(reductions_of_step(), 4);  // bound, two buckets, numbers
    EXPECT_EQ(reductions_of_step(), 3);

    // A run that goes on knows the bound from its save.
    tests::SpyCommunicator second_spy(comm);
    Exchange goes_on(second_spy, {}, false);
    const StateList from = exchange.reducer().state(), to = goes_on.reducer().state();
    ASSERT_EQ(from.size(), 2);
    EXPECT_EQ(from[1].key, "_lockstep/sync/wire_exponent");
    to[1].tensor.copy_(from[1].tensor);
    goes_on.step(1e-9);
    EXPECT_EQ(second_spy.num_reductions, 3);
    exchange.step(1e-9);
    EXPECT_TRUE(goes_on.means().equal(exchange.means()));
  });
}

TEST(WireScale, OneRankAloneScalesNothing) {
  tests::run_ranks(1, [](Communicator& comm) {
    Exchange exchange(comm, {}, false);
    EXPECT_TRUE(exchange.step(1e-40).finite());
    EXPECT_EQ(exchange.reducer().state().size(), 1);
  });
}

}  // namespace wire_scale_test
}  // namespace lockstep::dist
