#include "model/layers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::model {
namespace dropout_test {

constexpr double kShare = 0.3;

struct Layer {
  explicit Layer(double share = kShare, const char* name = "drop", int64_t seed = 3)
      : dropout(name, share, seed, &table) {}

  at::Tensor mask(int64_t step, int64_t first_sample, int64_t num_samples) {
    table.current_pass = {.step = step, .first_sample = first_sample};
    return dropout.mask(at::ones({num_samples, 5, 7}));
  }

  LayerTable table;
  Dropout dropout;
};

TEST(Dropout, IsTheSameHoweverTheBatchIsCut) {
  Layer layer;
  const at::Tensor whole = layer.mask(4, 0, 12);
  for (const auto& shares : {std::vector<int64_t>{6, 6}, {3, 3, 3, 3}, {1, 0, 11}}) {
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (const int64_t size : shares) {
      parts.push_back(layer.mask(4, first, size));
      first += size;
    }
    EXPECT_TRUE(at::equal(at::cat(parts), whole));
  }
}

TEST(Dropout, DiffersBetweenStepsSamplesLayersAndSeeds) {
  Layer layer, other(kShare, "other"), seeded(kShare, "drop", 4);
  const at::Tensor mask = layer.mask(4, 0, 2);
  EXPECT_FALSE(at::equal(layer.mask(5, 0, 2), mask));
  EXPECT_FALSE(at::equal(mask[0], mask[1]));
  EXPECT_FALSE(at::equal(other.mask(4, 0, 2), mask));
  EXPECT_FALSE(at::equal(seeded.mask(4, 0, 2), mask));
  EXPECT_TRUE(at::equal(layer.mask(4, 0, 2), mask));
}

TEST(Dropout, KeepsTheShareAndTheMean) {
  for (const double share : {0.1, 0.5, 0.9}) {
    Layer layer(share);
    const at::Tensor mask = layer.mask(0, 0, 10'000);  // 350,000 numbers
    EXPECT_NEAR(mask.eq(0).to(at::kDouble).mean().item<double>(), share, 0.005) << share;
    EXPECT_NEAR(mask.mean().item<double>(), 1, 0.02) << share;
    EXPECT_NEAR(mask.max().item<double>(), 1 / (1 - share), 1e-3) << share;
    const at::Tensor by_place = mask.eq(0).to(at::kDouble).mean(0);
    EXPECT_LT((by_place - share).abs().max().item<double>(), 0.03) << share;
  }
}

TEST(Dropout, DoesNothingInEvaluationAndWithAShareOf0) {
  const at::Tensor inputs = at::rand({3, 4});
  Layer layer, none(0);
  EXPECT_FALSE(at::equal(layer.dropout(inputs), inputs));
  layer.table.norms.set_training(false);
  EXPECT_TRUE(layer.dropout(inputs).is_same(inputs));
  EXPECT_TRUE(none.dropout(inputs).is_same(inputs));
}

TEST(Dropout, ScalesGradientsAsItScalesNumbers) {
  Layer layer;
  at::Tensor inputs = at::rand({3, 4}).set_requires_grad(true);
  layer.dropout(inputs).sum().backward();
  EXPECT_TRUE(at::equal(inputs.grad(), layer.dropout.mask(inputs)));
  EXPECT_EQ(layer.dropout(at::rand({0, 4})).sizes(), (at::IntArrayRef{0, 4}));
}

TEST(Dropout, TensorOperationsDrawWhatTheLoopDraws) {
  for (const int64_t num_numbers : {1, 3, 4, 7, 64})
    for (const int64_t first_sample : {0, 5}) {
      const MaskDraw draw{.random = CounterRandom{1, -2, 3},
                          .first_sample = first_sample,
                          .num_kept = 50'000,
                          .kept_value = 1.5F};
      EXPECT_TRUE(at::equal(drawn_by_tensors(draw, 9, num_numbers, at::kCPU),
                            drawn_by_loop(draw, 9, num_numbers)))
          << num_numbers;
    }
}

}  // namespace dropout_test
}  // namespace lockstep::model
