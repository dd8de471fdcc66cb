// The audit of arithmetic: it leaves no trace in a run, and finds a rank that computes wrong.
// LOCKSTEP_SOAK=1: 1,000 faults, 100,000 audited steps.
#include "train/step/audit.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/thread_world.h"
#include "tests/support/network_from_text.h"
#include "tests/train/small_run.h"
#include "train/step/training_pass.h"

namespace lockstep::train {
namespace audit_test {

using ::testing::HasSubstr;

int times(int few, int many) { return std::getenv("LOCKSTEP_SOAK") != nullptr ? many : few; }

using tests::SmallRun;
using tests::SmallRunOptions;

/// States of all ranks after some steps, joined.
std::string trained(int world_size, const SmallRunOptions& options, int num_steps) {
  std::vector<std::string> states(static_cast<size_t>(world_size));
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    for (int step = 0; step < num_steps; ++step) (void)run.step();
    states[static_cast<size_t>(comm.rank())] = tests::bits_of(run.state());
  });
  return fmt::format("{}", fmt::join(states, ""));
}

struct Case {
  const char* name;
  SmallRunOptions options;
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

SmallRunOptions with(const std::function<void(SmallRunOptions*)>& change) {
  SmallRunOptions options;
  change(&options);
  return options;
}

SmallRunOptions network(const std::string& text, std::vector<int64_t> shape, int64_t tokens = 0) {
  return {.model = tests::network(text),
          .shape = std::move(shape),
          .num_samples = 21,
          .global_batch = 8,
          .tokens = tokens};
}

constexpr const char* kPruning =
    "version: 1.0.0\nmodifiers:\n  - !GMPruningModifier {params: ['re:layers.*weight'], "
    "init_sparsity: 0.3, final_sparsity: 0.8, start_epoch: 0, end_epoch: 3, update_frequency: "
    "0.5}\n";
constexpr const char* kPruningByStep =
    "version: 1.0.0\nmodifiers:\n  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.3, "
    "final_sparsity: 0.95, start_step: 1, end_step: 6, update_frequency_steps: 2}\n"
    "  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}\n";
constexpr const char* kQuantizing =
    "version: 1.0.0\nmodifiers:\n  - !QuantizationModifier {start_epoch: 1}\n";

std::vector<Case> cases() {
  return {
      {"Mlp", {}},
      {"MicroBatches", with([](auto* o) { o->train.replicas_to_aggregate = 3; })},
      {"Elastic", with([](auto* o) { o->elastic = true; })},
      {"ElasticDropout", with([](auto* o) {
         *o = network("{type: gpt, layers: 2, heads: 2, width: 8, dropout: 0.3}", {6}, 11);
         o->elastic = true;
       })},
      {"Dropout", network("{type: gpt, layers: 2, heads: 2, width: 8, dropout: 0.3}", {6}, 11)},
      {"BatchNorm",
       network("{type: cnn, channels: [4, 4], hidden: 8, batch_norm: true}", {1, 8, 8})},
      {"ElasticBatchNorm", with([](auto* o) {
         *o = network("{type: cnn, channels: [4, 4], hidden: 8, batch_norm: true}", {1, 8, 8});
         o->elastic = true;
       })},
      {"BatchNormOfRank0", with([](auto* o) {
         *o = network("{type: cnn, channels: [4, 4], hidden: 8, batch_norm: true}", {1, 8, 8});
         o->train.batch_norm = "broadcast";
       })},
      {"KeptProducts", with([](auto* o) {
         *o = network("{type: mlp, layers: [6, 1030, 1030, 4], activation: tanh}", {6});
         o->recipe = kPruningByStep;
       })},
      {"KeptProductsShared", with([](auto* o) {
         *o = network("{type: mlp, layers: [6, 1030, 1030, 4], activation: tanh}", {6});
         o->recipe = kPruningByStep;
         o->shares_weights = true;
       })},
      {"Pruned", with([](auto* o) { o->recipe = kPruning; })},
      {"PrunedShared", with([](auto* o) {
         o->recipe = kPruning;
         o->shares_weights = true;
       })},
      {"Quantized", with([](auto* o) { o->recipe = kQuantizing; })},
      {"Sharded", with([](auto* o) { o->sync.shard_optimizer = true; })},
      {"Clipped", with([](auto* o) { o->optimizer.clip.norm = 0.1; })},
      {"Bf16", with([](auto* o) { o->train.precision = "bf16"; })},
      {"KeepsTensors", with([](auto* o) { o->keeps_tensors = true; })},
      {"Distilled", with([](auto* o) {
         o->distills = true;
         o->recipe =
             "version: 1.0.0\nmodifiers:\n  - !DistillationModifier {start_epoch: 0, end_epoch: "
             "9}\n";
       })},
  };
}

class EveryRun : public ::testing::TestWithParam<Case> {};

TEST_P(EveryRun, IsNotChangedByAudits) {
  for (const int world_size : {1, 2, 4}) {
    SmallRunOptions options = GetParam().options;
    const std::string plain = trained(world_size, options, 12);
    for (const int64_t every : {1, 3}) {
      options.audit_every = every;
      EXPECT_EQ(trained(world_size, options, 12), plain) << world_size << " ranks, each " << every;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Audit, EveryRun, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

/// Processor that flips a bit of a layer's input, in some of its passes.
class Faulty final : public LayerHook {
 public:
  /// first, last: passes that are wrong, from 0; none if `first` is negative.
  Faulty(int first, int last, int64_t layer, uint32_t bit)
      : first_(first), last_(last), layer_(layer), bit_(bit) {}

  at::Tensor input(int64_t layer, const at::Tensor& input) override {
    if (layer == 0) ++pass_;
    if (layer != layer_ || pass_ < first_ || pass_ > last_ || first_ < 0) return input;
    const at::Tensor wrong = at::zeros_like(input);
    auto* const value = static_cast<float*>(wrong.mutable_data_ptr());
    const float right = input.const_data_ptr<float>()[0];
    uint32_t bits = 0;
    std::memcpy(&bits, &right, sizeof(bits));
    bits ^= 1U << bit_;
    std::memcpy(value, &bits, sizeof(bits));
    *value -= right;
    return input + wrong;
  }
  at::Tensor weight(int64_t, const at::Tensor& weight) override { return weight; }

 private:
  const int first_, last_;
  const int64_t layer_;
  const uint32_t bit_;
  int pass_ = -1;
};

/// Error of all ranks, and whether a weight changed in the audited step.
struct Verdict {
  ExitCode code = ExitCode::kDone;
  std::string message;
  bool has_updated = false;
};

struct Fault {
  int world_size, rank;
  int step;      ///< audited, from 1
  bool in_own;   ///< in the pass over the rank's own samples, else in that over another's
  bool repeats;  ///< in all later passes too
  int64_t layer = 0;
  uint32_t bit = 22;
};

Verdict verdict_on(const Fault& fault) {
  std::mutex mutex;
  std::vector<Verdict> verdicts;
  tests::run_ranks(fault.world_size, [&](dist::Communicator& comm) {
    SmallRunOptions options{.num_samples = 40, .global_batch = 8, .audit_every = 1};
    SmallRun run(comm, options);
    const int pass = 2 * (fault.step - 1) + (fault.in_own ? 1 : 0);
    Faulty processor(comm.rank() == fault.rank ? pass : -1, fault.repeats ? 1 << 30 : pass,
                     fault.layer, fault.bit);
    run.model->set_layer_hook(&processor);
    Verdict verdict;
    std::string before;
    try {
      for (int step = 0; step < fault.step; ++step) {
        before = tests::bits_of(run.state());
        (void)run.step();
      }
    } catch (const Error& error) {
      verdict = {error.code(), error.what(), tests::bits_of(run.state()) != before};
      EXPECT_TRUE(error.on_every_rank());
    }
    run.model->set_layer_hook(nullptr);
    const std::scoped_lock lock(mutex);
    verdicts.push_back(verdict);
  });
  for (const Verdict& verdict : verdicts) EXPECT_EQ(verdict.message, verdicts[0].message);
  return verdicts[0];
}

TEST(Audit, NamesTheRankTheTensorAndTheValues) {
  const Verdict verdict =
      verdict_on({.world_size = 4, .rank = 2, .step = 2, .in_own = true, .repeats = true});
  EXPECT_EQ(verdict.code, ExitCode::kDisagree);
  EXPECT_THAT(
      verdict.message,
      ::testing::ContainsRegex("the audit of step 2 found wrong arithmetic: rank 2 \\(host 2\\) "
                               "computed another gradient of layers.0.weight than the other "
                               "ranks from the samples of rank [0-3] \\(item 0 \\[0, 0\\]: "
                               "[-0-9.e]+ instead of [-0-9.e]+\\); computed again, it was wrong "
                               "again. No update"));
  EXPECT_FALSE(verdict.has_updated);
}

TEST(Audit, ATransientFaultIsToldAsSuch) {
  const Verdict own =
      verdict_on({.world_size = 3, .rank = 1, .step = 3, .in_own = true, .repeats = false});
  EXPECT_THAT(own.message, HasSubstr("rank 1 (host 1)"));
  EXPECT_THAT(own.message, HasSubstr(" instead of "));
  EXPECT_THAT(own.message, HasSubstr("computed again, it was right"));
  const Verdict others =
      verdict_on({.world_size = 3, .rank = 1, .step = 3, .in_own = false, .repeats = false});
  EXPECT_THAT(others.message, HasSubstr("rank 1 (host 1)"));
  EXPECT_THAT(others.message, HasSubstr("(values not kept); computed again, it was right"));
}

TEST(Audit, TwoRanksFindATransientFaultAndCannotJudgeALastingOne) {
  EXPECT_THAT(
      verdict_on({.world_size = 2, .rank = 1, .step = 1, .in_own = true, .repeats = false}).message,
      HasSubstr("rank 1 (host 1) computed"));
  const std::string message =
      verdict_on({.world_size = 2, .rank = 1, .step = 1, .in_own = true, .repeats = true}).message;
  EXPECT_THAT(message, HasSubstr("rank 0 (host 0)"));
  EXPECT_THAT(message, HasSubstr("rank 1 (host 1)"));
  EXPECT_THAT(message, HasSubstr("Test both hosts"));
}

TEST(Audit, ALoneRankComputesItsOwnSamplesTwice) {
  for (const bool in_own : {true, false})
    EXPECT_THAT(
        verdict_on({.world_size = 1, .rank = 0, .step = 2, .in_own = in_own, .repeats = false})
            .message,
        HasSubstr("rank 0 (host 0) computed"));
}

/// Layers whose results depend on how often they were computed, on all ranks.
class Counting final : public LayerHook {
 public:
  at::Tensor input(int64_t layer, const at::Tensor& input) override {
    return layer == 0 ? input * (1 + 0.01 * ++count_) : input;
  }
  at::Tensor weight(int64_t, const at::Tensor& weight) override { return weight; }

 private:
  int count_ = 0;
};

TEST(Audit, ANetworkThatDoesNotRepeatItsResultsIsNoFaultOfARank) {
  for (const int world_size : {1, 2, 3, 4})
    tests::run_ranks(world_size, [](dist::Communicator& comm) {
      SmallRun run(comm, {.num_samples = 40, .global_batch = 8, .audit_every = 1});
      Counting layers;
      run.model->set_layer_hook(&layers);
      try {
        (void)run.step();
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kConfig);
        EXPECT_THAT(error.what(), HasSubstr("the network does not repeat its results"));
      }
      run.model->set_layer_hook(nullptr);
    });
}

TEST(Audit, RandomFaultsAreFoundAtOnceAndOfTheRightRank) {
  std::mt19937 random(20);
  const auto any = [&](int num) { return static_cast<int>(random() % static_cast<unsigned>(num)); };
  const int num_faults = times(150, 1000);
  for (int i = 0; i < num_faults; ++i) {
    Fault fault{.world_size = 3 + any(2),
                .rank = 0,
                .step = 1 + any(4),
                .in_own = any(2) == 0,
                .repeats = any(2) == 0,
                .layer = any(2),
                .bit = static_cast<uint32_t>(18 + any(6))};
    fault.rank = any(fault.world_size);
    const Verdict verdict = verdict_on(fault);
    EXPECT_EQ(verdict.code, ExitCode::kDisagree) << i;
    EXPECT_THAT(verdict.message, HasSubstr(fmt::format("the audit of step {} ", fault.step)));
    EXPECT_THAT(verdict.message,
                HasSubstr(fmt::format(": rank {} (host {}) computed", fault.rank, fault.rank)));
    EXPECT_FALSE(verdict.has_updated) << i;
  }
}

TEST(Audit, FindsNothingWhereNothingIsWrong) {
  const int num_steps = times(500, 100'000);
  double audited_s = 0, plain_s = 0;
  for (const bool is_audited : {true, false})
    tests::run_ranks(2, [&](dist::Communicator& comm) {
      SmallRunOptions options = network("{type: mlp, layers: [64, 64, 10]}", {64});
      options.num_classes = 10;
      options.audit_every = is_audited ? 1 : 0;
      SmallRun run(comm, options);
      Stopwatch watch;
      for (int step = 0; step < num_steps; ++step) (void)run.step();
      if (comm.rank() == 0) (is_audited ? audited_s : plain_s) = watch.lap();
    });
  std::printf("%d audited steps without a finding; at 1 in 500 they add %.3f %%\n", num_steps,
              (audited_s / plain_s - 1) * 100 / 500);
}

}  // namespace audit_test
}  // namespace lockstep::train
