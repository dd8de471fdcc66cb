// Target tokens that are ignored (-100), against PyTorch's own mean: at::cross_entropy_loss over
// the whole global batch.
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/fake_graph.h"
#include "support/network_from_text.h"
#include "support/thread_world.h"
#include "train/evaluator.h"
#include "train/small_run.h"

namespace lockstep::train {
namespace ignored_targets_test {

using tests::FakeGraph;
using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 6;
constexpr int64_t kNumSamples = 22, kNumTokens = 6, kVocabulary = 11;

at::Tensor random_tokens() {
  const data::RandomDataset random(
      {.shape = {kNumTokens + 1}, .samples = kNumSamples, .seed = 1, .tokens = kVocabulary});
  std::vector<int64_t> all(kNumSamples);
  std::iota(all.begin(), all.end(), 0);
  return random.get(all, 0).inputs_BX;
}

/// Samples i of which the last i % 7 targets are ignored: of some none, of some all.
at::Tensor padded(const at::Tensor& tokens_ST) {
  at::Tensor targets_ST = tokens_ST.narrow(1, 1, kNumTokens).clone();
  for (int64_t i = 0; i < targets_ST.size(0); ++i)
    targets_ST[i].narrow(0, kNumTokens - i % 7, i % 7).fill_(data::kIgnoredTarget);
  return targets_ST;
}

class PaddedTokens final : public data::MemoryDataset {
 public:
  explicit PaddedTokens(const std::function<at::Tensor(const at::Tensor&)>& targets = padded)
      : MemoryDataset(random_tokens().narrow(1, 0, kNumTokens).contiguous(),
                      targets(random_tokens()), kVocabulary, data::TargetKind::kTokens) {}
  data::SampleSpec spec() const override {
    data::SampleSpec spec = MemoryDataset::spec();
    spec.may_ignore = true;
    return spec;
  }
};

SmallRunOptions options_of(const data::Dataset& data) {
  return {.model = tests::network("{type: gpt, layers: 1, heads: 2, width: 8}"),
          .shape = {kNumTokens},
          .num_samples = kNumSamples,
          .global_batch = 8,
          .tokens = kVocabulary,
          .data = &data};
}

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

Outcome trained(const SmallRunOptions& options, int world_size, bool records = false) {
  Outcome outcome;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRunOptions own = options;
    if (records) own.graph = std::make_shared<FakeGraph>(/*refuses=*/false);
    SmallRun run(comm, own);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) losses.push_back(run.step().loss);
    run.require_equal_ranks();
    if (comm.rank() != 0) return;
    outcome.losses = losses;
    for (const Param& param : run.model->params())
      outcome.weights.push_back(param.tensor.detach().clone());
  });
  return outcome;
}

/// Outcome by hand: the whole batch at once, PyTorch's mean, plain steps of 0.1.
Outcome by_hand(const data::Dataset& data) {
  const auto net = tests::network("{type: gpt, layers: 1, heads: 2, width: 8}")
                       .make({.input_shape = {kNumTokens},
                              .num_classes = kVocabulary,
                              .seed = 17,
                              .input_dtype = at::kLong});
  data::Sampler sampler({.num_samples = kNumSamples, .global_batch_size = 8, .seed = 2});
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const data::Samples batch = data.get(sampler.next().indices, 0);
    const at::Tensor loss = at::cross_entropy_loss(net->forward(batch.inputs_BX).flatten(0, 1),
                                                   batch.targets_BY.flatten(), {},
                                                   at::Reduction::Mean, /*ignore_index=*/-100);
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (const Param& param : net->params()) {
      at::Tensor weight = param.tensor;
      weight.sub_(weight.grad(), 0.1);
      weight.mutable_grad().zero_();
    }
  }
  for (const Param& param : net->params()) outcome.weights.push_back(param.tensor.detach());
  return outcome;
}

void expect_close(const Outcome& ours, const Outcome& theirs) {
  EXPECT_THAT(ours.losses, ::testing::Pointwise(::testing::DoubleNear(2e-6), theirs.losses));
  ASSERT_EQ(ours.weights.size(), theirs.weights.size());
  for (size_t i = 0; i < ours.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(ours.weights[i], theirs.weights[i], 1e-5, 2e-6)) << i;
}

TEST(IgnoredTargets, EveryWayOfTrainingDividesByThoseThatCount) {
  const PaddedTokens data;
  const Outcome theirs = by_hand(data);
  std::map<std::string, SmallRunOptions> ways;
  for (const char* name : {"plain", "micro-batches", "divided", "elastic", "clipped"})
    ways.emplace(name, options_of(data));
  ways.at("micro-batches").train.replicas_to_aggregate = 3;
  ways.at("divided").sync.shard_optimizer = true;
  ways.at("elastic").elastic = true;
  ways.at("clipped").optimizer.clip.norm = 1e6;
  for (const auto& [name, options] : ways)
    for (const int world_size : {1, 2, 4}) {
      SCOPED_TRACE(name + ", ranks: " + std::to_string(world_size));
      expect_close(trained(options, world_size), theirs);
    }
  SmallRunOptions recorded = options_of(data);
  recorded.sync.overlap = "false";
  expect_close(trained(recorded, 2, /*records=*/true), theirs);
}

TEST(IgnoredTargets, ElasticTrainingGivesTheSameBits) {
  const PaddedTokens data;
  SmallRunOptions options = options_of(data);
  options.elastic = true;
  const Outcome alone = trained(options, 1), divided = trained(options, 4);
  EXPECT_EQ(divided.losses, alone.losses);
  for (size_t i = 0; i < alone.weights.size(); ++i)
    EXPECT_TRUE(divided.weights[i].equal(alone.weights[i])) << i;
}

TEST(IgnoredTargets, WithoutAnyNoBitChanges) {
  const auto none = [](const at::Tensor& tokens_ST) {
    return tokens_ST.narrow(1, 1, kNumTokens).contiguous();
  };
  class PlainTokens final : public data::MemoryDataset {
   public:
    PlainTokens(at::Tensor inputs, at::Tensor targets)
        : MemoryDataset(std::move(inputs), std::move(targets), kVocabulary,
                        data::TargetKind::kTokens) {}
  };
  const at::Tensor tokens_ST = random_tokens();
  const PlainTokens plain(tokens_ST.narrow(1, 0, kNumTokens).contiguous(), none(tokens_ST));
  const PaddedTokens may_ignore(none);
  const Outcome ours = trained(options_of(may_ignore), 2), theirs = trained(options_of(plain), 2);
  EXPECT_EQ(ours.losses, theirs.losses);
  for (size_t i = 0; i < ours.weights.size(); ++i)
    EXPECT_TRUE(ours.weights[i].equal(theirs.weights[i])) << i;
}

TEST(IgnoredTargets, ABatchWithoutATargetLeavesItsUpdateOut) {
  const PaddedTokens data([](const at::Tensor& tokens_ST) {
    return at::full({tokens_ST.size(0), kNumTokens}, data::kIgnoredTarget, at::kLong);
  });
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    SmallRun run(comm, options_of(data));
    const at::Tensor before = run.model->params()[0].tensor.detach().clone();
    const StepReport report = run.step();
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(run.model->params()[0].tensor.detach().equal(before));
  });
}

TEST(IgnoredTargets, LocalStepsDivideByTheRanksOwn) {
  const PaddedTokens data;
  SmallRunOptions options = options_of(data);
  options.sync.sync_replicas = false;
  options.sync.sync_every = 1;
  expect_close(trained(options, 1), by_hand(data));
}

TEST(IgnoredTargets, EvaluationsCountTheOthersOnly) {
  const PaddedTokens data;
  const auto net = options_of(data).model.make({.input_shape = {kNumTokens},
                                                .num_classes = kVocabulary,
                                                .seed = 17,
                                                .input_dtype = at::kLong});
  const at::Tensor tokens_ST = random_tokens();
  const at::Tensor outputs_NV =
      net->forward(tokens_ST.narrow(1, 0, kNumTokens).contiguous()).detach().flatten(0, 1);
  const at::Tensor targets_N = padded(tokens_ST).flatten();
  const double loss =
      at::cross_entropy_loss(outputs_NV, targets_N, {}, at::Reduction::Mean, -100).item<double>();
  double right = 0, counted = 0;
  for (int64_t i = 0; i < targets_N.size(0); ++i) {
    if (targets_N[i].item<int64_t>() == -100) continue;
    counted += 1;
    right += outputs_NV[i].argmax().item<int64_t>() == targets_N[i].item<int64_t>() ? 1 : 0;
  }
  Diagnostics faults;
  const YamlDocument document =
      YamlDocument::parse("run.yaml",
                          "{batch_size: 5, metrics: [perplexity, top_k, confusion_matrix, "
                          "precision_recall], top_k: {k: "
                          "1}}",
                          &faults);
  const EvalOptions options =
      read_eval_options(ConfigReader(document.root(), "eval", document, &faults));
  for (const int world_size : {1, 3})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      const EvalResult result =
          evaluate(ModelHandler(*net), Loss("auto", {}, data.spec()), data, options, comm);
      EXPECT_NEAR(result.loss, loss, 1e-6);
      EXPECT_NEAR(*result.accuracy, right / counted, 1e-12);
      EXPECT_EQ(result.num_samples, kNumSamples);
      std::map<std::string, at::Tensor> found;
      for (const EvalValue& value : result.metrics) found[value.name] = value.value;
      EXPECT_NEAR(found.at("perplexity").item<double>(), std::exp(loss), 1e-4);
      EXPECT_NEAR(found.at("top_1").item<double>(), right / counted, 1e-12);
      EXPECT_EQ(found.at("confusion_matrix").sum().item<int64_t>(), counted);
    });
}

TEST(IgnoredTargets, AnEvaluationOfNothingIsRefused) {
  const PaddedTokens data([](const at::Tensor& tokens_ST) {
    return at::full({tokens_ST.size(0), kNumTokens}, data::kIgnoredTarget, at::kLong);
  });
  const auto net = options_of(data).model.make({.input_shape = {kNumTokens},
                                                .num_classes = kVocabulary,
                                                .seed = 17,
                                                .input_dtype = at::kLong});
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    try {
      (void)evaluate(ModelHandler(*net), Loss("auto", {}, data.spec()), data, {}, comm);
      ADD_FAILURE() << "every target is ignored";
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kBadData);
      EXPECT_THAT(fault.what(),
                  ::testing::HasSubstr("every target of data.eval is ignored (-100)"));
    }
  });
}

}  // namespace ignored_targets_test
}  // namespace lockstep::train
