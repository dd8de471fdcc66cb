#include "train/loss/loss.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace lockstep::train {
namespace loss_test {

using data::SampleSpec;
using data::TargetKind;

SampleSpec spec_of(TargetKind kind, int64_t num_classes) {
  return {.input_shape = {3}, .target_kind = kind, .num_classes = num_classes};
}

double value(const at::Tensor& scalar) { return scalar.item<double>(); }

TEST(Loss, SumsOverSamplesAndIsZeroForNone) {
  const Loss loss("cross_entropy", {}, spec_of(TargetKind::kClass, 4));
  const at::Tensor logits_BC = at::zeros({3, 4}), targets_B = at::zeros({3}, at::kLong);
  EXPECT_NEAR(value(loss.sum(logits_BC, targets_B)), 3 * std::log(4.0), 1e-6);
  EXPECT_EQ(value(loss.sum(logits_BC.narrow(0, 0, 0), targets_B.narrow(0, 0, 0))), 0);
}

/// TensorFlow's: one_hot * (1 - s) + s / C.
TEST(Loss, LabelSmoothingSpreadsAShareOverAllClasses) {
  const at::Tensor logits_BC =
      at::tensor({0.5, -1.0, 2.0, 0.0, 1.0, 3.0}).view({2, 3}).to(at::kFloat);
  const at::Tensor targets_B = at::tensor({2, 0}, at::kLong);
  const at::Tensor smooth_BC = at::one_hot(targets_B, 3) * 0.9 + 0.1 / 3;
  const double by_hand = -value((smooth_BC * logits_BC.log_softmax(1)).sum());
  EXPECT_NEAR(value(Loss("auto", {.label_smoothing = 0.1}, spec_of(TargetKind::kClass, 3))
                        .sum(logits_BC, targets_B)),
              by_hand, 1e-6);
  EXPECT_NEAR(value(Loss("auto", {.label_smoothing = 0.1}, spec_of(TargetKind::kSoft, 3))
                        .sum(logits_BC, at::one_hot(targets_B, 3).to(at::kFloat))),
              by_hand, 1e-6);
}

TEST(Loss, SoftLabelsOfOneClassAreThatClass) {
  const at::Tensor logits_BC =
      at::tensor({0.5, -1.0, 2.0, 0.0, 1.0, 3.0}).view({2, 3}).to(at::kFloat);
  const at::Tensor targets_B = at::tensor({2, 0}, at::kLong);
  const at::Tensor one_hot_BC = at::one_hot(targets_B, 3).to(at::kFloat);
  const Loss by_class("auto", {}, spec_of(TargetKind::kClass, 3));
  const Loss by_label("auto", {}, spec_of(TargetKind::kSoft, 3));
  EXPECT_NEAR(value(by_class.sum(logits_BC, targets_B)), value(by_label.sum(logits_BC, one_hot_BC)),
              1e-6);
  EXPECT_EQ(by_class.num_correct(logits_BC, targets_B), 1);
  EXPECT_EQ(by_label.num_correct(logits_BC, one_hot_BC), 1);
}

TEST(Loss, OfValuesIsTheMeanOverTheNumbersOfASample) {
  const at::Tensor outputs_BY = at::tensor({1.0, 3.0, 0.0, 0.0}).view({2, 2}).to(at::kFloat);
  const at::Tensor targets_BY = at::tensor({0.0, 1.0, 1.0, 0.0}).view({2, 2}).to(at::kFloat);
  const SampleSpec spec = spec_of(TargetKind::kValues, 2);
  const Loss squared("auto", {}, spec), binary("binary", {}, spec);
  EXPECT_NEAR(value(squared.sum(outputs_BY, targets_BY)), (1 + 4) / 2.0 + (1 + 0) / 2.0, 1e-6);
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  EXPECT_NEAR(value(binary.sum(outputs_BY, targets_BY)),
              (softplus(1) + softplus(-3) + softplus(0) + softplus(0)) / 2, 1e-6);
  EXPECT_FALSE(squared.num_correct(outputs_BY, targets_BY).has_value());
}

TEST(Loss, OfTokensIsTheMeanOverTheTokensOfASample) {
  const Loss loss("auto", {}, spec_of(TargetKind::kTokens, 5));
  const at::Tensor logits_BTV = at::zeros({2, 3, 5});
  logits_BTV.select(2, 1).fill_(1);  // the token 1 is the guess everywhere
  const at::Tensor targets_BT = at::tensor({1, 1, 0, 4, 1, 2}, at::kLong).view({2, 3});
  const double all = std::log(4 + std::exp(1.0));
  EXPECT_NEAR(value(loss.sum(logits_BTV, targets_BT)), 2 * all - 3 / 3.0, 1e-6);
  EXPECT_NEAR(*loss.num_correct(logits_BTV, targets_BT), 1.0, 1e-12);  // three tokens of three
}

TEST(Loss, CountsTokensWhereBatchesHaveDifferentLengths) {
  SampleSpec spec = spec_of(TargetKind::kTokens, 5);
  spec.may_ignore = spec.varies = true;
  const Loss loss("auto", {}, spec);
  const at::Tensor logits_BTV = at::zeros({2, 3, 5});
  logits_BTV.select(2, 1).fill_(1);
  const at::Tensor targets_BT = at::tensor({1, 2, -100, 4, -100, -100}, at::kLong).view({2, 3});
  EXPECT_NEAR(value(loss.sum(logits_BTV, targets_BT)), 3 * std::log(4 + std::exp(1.0)) - 1, 1e-5);
  EXPECT_EQ(loss.num_counted(targets_BT), 3);
  EXPECT_EQ(loss.count(targets_BT).all, 2);
  EXPECT_EQ(loss.num_correct(logits_BTV, targets_BT), 1);
}

TEST(Loss, OfTheNetworkCountsNoTargetsThatItLeavesOut) {
  SampleSpec spec = spec_of(TargetKind::kTokens, 5);
  spec.may_ignore = true;
  const at::Tensor targets_BT = at::tensor({1, 2, -100, 4, -100, -100}, at::kLong).view({2, 3});
  EXPECT_EQ(Loss("own", {}, spec).num_counted(targets_BT), 1);                      // 3 of 3 tokens
  EXPECT_EQ(Loss("own", {}, spec, /*num_unused=*/1).num_counted(targets_BT), 0.5);  // 1 of 2
  spec.varies = true;
  EXPECT_EQ(Loss("own", {}, spec, /*num_unused=*/1).num_counted(targets_BT), 1);
  EXPECT_EQ(Loss("own", {}, spec).num_counted(targets_BT.narrow(0, 0, 0)), 0);
}

TEST(Loss, NeedsTargets) {
  SampleSpec spec = spec_of(TargetKind::kValues, 1);
  spec.has_targets = false;
  spec.example.names = {"input_ids", "attention_mask"};
  EXPECT_TRUE(Loss("own", {}, spec).is_own());
  try {
    const Loss loss("auto", {}, spec);
    FAIL();
  } catch (const Error& fault) {
    EXPECT_THAT(fault.what(), testing::HasSubstr("their keys are input_ids, attention_mask"));
  }
}

TEST(Loss, RefusesTargetsAndOutputsThatDoNotFit) {
  const auto message = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kConfig);
      return fault.what();
    }
    return "";
  };
  EXPECT_THAT(message([] { Loss("next_token", {}, spec_of(TargetKind::kClass, 4)); }),
              testing::HasSubstr("train.loss next_token does not support class numbers"));
  const Loss loss("auto", {}, spec_of(TargetKind::kClass, 4));
  EXPECT_THAT(message([&] {
                (void)loss.sum(at::zeros({2, 5}), at::zeros({2}, at::kLong));
              }),
              testing::HasSubstr(
                  "the network returns [2, 5] for 2 samples, the loss cross_entropy needs [2, 4]"));
}

TEST(Loss, LabelSmoothingThatHasNoEffectIsRefused) {
  for (const char* name : {"own", "auto", "binary"}) try {
      Loss(name, {.label_smoothing = 0.1}, spec_of(TargetKind::kValues, 2));
      ADD_FAILURE() << name;
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kConfig);
      EXPECT_THAT(fault.what(), testing::HasSubstr("train.label_smoothing is 0.1, but"));
    }
}

TEST(Loss, TheShapeThatScalarTargetsNeedIsOneNumber) {
  const Loss loss("auto", {}, spec_of(TargetKind::kValues, 1));
  try {
    (void)loss.sum(at::zeros({2, 3}), at::zeros({2}));
    ADD_FAILURE() << "3 outputs for one value";
  } catch (const Error& fault) {
    EXPECT_THAT(fault.what(), testing::HasSubstr("needs [2]: the data has"));
  }
}

}  // namespace loss_test
}  // namespace lockstep::train
