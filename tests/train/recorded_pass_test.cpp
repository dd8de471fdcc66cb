// Training passes as a device's recording: the bits of passes that are not recorded, and when they
// are.
#include "train/step/training_pass.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "model/networks/small_networks.h"
#include "support/fake_graph.h"
#include "support/network_from_text.h"
#include "support/thread_world.h"
#include "train/small_run.h"

namespace lockstep::train {
namespace recorded_pass_test {

using tests::FakeGraph;
using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 24;

struct Outcome {
  std::string bits;
  std::vector<double> losses;
  int num_records = 0, num_replays = 0;
};

/// Outcome of rank 0.
Outcome train(int num_ranks, SmallRunOptions options, bool records, bool refuses = false) {
  Outcome outcome;
  tests::run_ranks(num_ranks, [&](dist::Communicator& comm) {
    const auto graph = records ? std::make_shared<FakeGraph>(refuses) : nullptr;
    SmallRunOptions own = options;
    own.graph = graph;
    SmallRun run(comm, own);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) losses.push_back(run.step().loss);
    run.require_equal_ranks();
    const std::string bits = tests::bits_of(run.state());
    if (comm.rank() != 0) return;
    outcome = {bits, losses};
    if (graph != nullptr) {
      outcome.num_records = graph->num_records;
      outcome.num_replays = graph->num_replays;
    }
  });
  return outcome;
}

/// Gradients that do not travel during backward.
SmallRunOptions plain() {
  SmallRunOptions options;
  options.sync.overlap = "false";
  options.optimizer.type = "momentum";
  return options;
}

SmallRunOptions small_gpt(const std::string& dropout) {
  SmallRunOptions options = plain();
  options.model =
      tests::network("{type: gpt, layers: 2, heads: 2, width: 8, dropout: " + dropout + "}");
  options.shape = {6};
  options.tokens = 11;
  return options;
}

std::map<std::string, SmallRunOptions> settings() {
  std::map<std::string, SmallRunOptions> all;
  all["plain"] = plain();
  all["micro-batches"] = plain();
  all["micro-batches"].train.replicas_to_aggregate = 2;
  all["clipped"] = plain();
  all["clipped"].optimizer.clip.norm = 0.1;
  all["divided"] = plain();
  all["divided"].sync.shard_optimizer = true;
  all["bf16"] = plain();
  all["bf16"].train.precision = "bf16";
  all["loss scale"] = plain();
  all["loss scale"].train.precision = "fp16";
  all["loss scale"].train.loss_scale.initial_exponent = 12;
  all["averages"] = plain();
  all["averages"].optimizer.ema_decay = 0.9;
  all["gpt"] = small_gpt("0");
  all["pruned"] = plain();
  all["pruned"].recipe =
      "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 8}\n"
      "  - !GMPruningModifier {params: ['layers.0', 'layers.1'], init_sparsity: 0.1, "
      "final_sparsity: 0.8, start_epoch: 0, end_epoch: 8, update_frequency: 0.3}\n";
  all["batch norm"] = plain();
  all["batch norm"].shape = {1, 6, 6};
  all["batch norm"].model = model::cnn({.channels = {4, 6}, .hidden = 8, .batch_norm = true});
  return all;
}

TEST(RecordedPass, GivesTheBitsOfPassesThatAreNotRecorded) {
  for (const auto& [name, options] : settings())
    for (const int num_ranks : {1, 2, 3}) {
      SCOPED_TRACE(name + ", ranks: " + std::to_string(num_ranks));
      const Outcome without = train(num_ranks, options, /*records=*/false);
      const Outcome with = train(num_ranks, options, /*records=*/true);
      EXPECT_EQ(with.losses, without.losses);
      EXPECT_EQ(with.bits, without.bits);
      EXPECT_EQ(with.num_records, 1);
      EXPECT_GE(with.num_replays, 10);
    }
}

/// 4, 4 and 2 samples: the last batch of an epoch is not the usual one.
TEST(RecordedPass, RunsOtherShapesAsEver) {
  const Outcome with = train(1, plain(), /*records=*/true);
  EXPECT_EQ(with.num_records, 1);
  EXPECT_EQ(with.num_replays, (kSteps - 7) / 3 * 2 + 1);  // from the eighth step on, two of three
}

TEST(RecordedPass, IsMadeAnewWhereOthersAreTrained) {
  SmallRunOptions options = plain();
  options.recipe =
      "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 8}\n"
      "  - !TrainableParamsModifier {params: ['layers.0.weight'], trainable: false, start_epoch: "
      "4}\n";
  const Outcome without = train(2, options, /*records=*/false);
  const Outcome with = train(2, options, /*records=*/true);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.bits, without.bits);
  EXPECT_EQ(with.num_records, 2);
  EXPECT_EQ(with.num_replays, 6);  // of each 12 steps the 8th, 10th and 11th
}

TEST(RecordedPass, IsLeftOutWhereTheHostsNumbersCount) {
  const SmallRunOptions dropping = small_gpt("0.3");
  SmallRunOptions quantizing = plain();
  quantizing.recipe =
      "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 8}\n"
      "  - !QuantizationModifier {start_epoch: 1}\n";
  for (const SmallRunOptions& options : {dropping, quantizing}) {
    const Outcome with = train(1, options, /*records=*/true);
    EXPECT_EQ(with.num_records, 0);
    EXPECT_EQ(with.bits, train(1, options, /*records=*/false).bits);
  }
}

TEST(RecordedPass, IsLeftOutWhereBucketsTravelDuringBackward) {
  SmallRunOptions options = plain();
  options.sync.overlap = "true";
  EXPECT_EQ(train(2, options, /*records=*/true).num_records, 0);
  EXPECT_EQ(train(1, options, /*records=*/true).num_records, 1);  // nothing travels
}

TEST(RecordedPass, GoesOnWhereTheDeviceRefuses) {
  for (const char* name : {"plain", "batch norm"}) {
    const SmallRunOptions options = settings().at(name);
    const Outcome with = train(2, options, /*records=*/true, /*refuses=*/true);
    EXPECT_EQ(with.num_records, 1);
    EXPECT_EQ(with.num_replays, 0);
    EXPECT_EQ(with.bits, train(2, options, /*records=*/false).bits) << name;
  }
}

}  // namespace recorded_pass_test
}  // namespace lockstep::train
