// sync.share_weights: one copy of the weights for all ranks, and no bit is another; nor with the
// other mechanisms by which ranks work together.
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

#include "support/thread_world.h"
#include "tests/dist/spy_communicator.h"
#include "tests/train/small_run.h"
#include "train/step/share_weights.h"

namespace lockstep::train {
namespace shared_weights_test {

using ::testing::HasSubstr;
using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 12;

constexpr const char* kPruned = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_step: 2, end_step: 9, update_frequency_steps: 3}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

/// Frozen, thawed, frozen otherwise; a value set in between.
constexpr const char* kFrozen = R"(version: 1.0.0
modifiers:
  - !TrainableParamsModifier {params: [layers.1], trainable: false, start_step: 3, end_step: 6}
  - !TrainableParamsModifier {params: [layers.0], trainable: false, start_step: 7, end_step: 10}
  - !SetParamModifier {params: [layers.2], val: 0.25, start_step: 5}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

using Change = void (*)(SmallRunOptions*);

/// Situations of a run, by name.
const std::map<std::string, Change> kSituations{
    {"plain", [](SmallRunOptions*) {}},
    {"pruned", [](SmallRunOptions* options) { options->recipe = kPruned; }},
    {"frozen", [](SmallRunOptions* options) { options->recipe = kFrozen; }},
    {"sharded",
     [](SmallRunOptions* options) {
       options->sync.shard_optimizer = true;
       options->recipe = kPruned;
     }},
    {"clipped",
     [](SmallRunOptions* options) {
       options->optimizer.clip = {.value = 0.2, .norm = 0.3};
       options->recipe = kPruned;
     }},
    {"fp16",
     [](SmallRunOptions* options) {
       options->train.precision = "fp16";
       options->train.loss_scale = {.initial_exponent = 20, .growth_steps = 3};
     }},
    {"elastic", [](SmallRunOptions* options) { options->elastic = true; }},
    {"averaged", [](SmallRunOptions* options) { options->optimizer.ema_decay = 0.9; }}};

/// Mechanisms by which ranks share the work; none may change a bit of the result. Without any,
/// gradients are sent whole and in few messages, after backward.
const std::map<std::string, Change> kMechanisms{
    {"one copy of the weights", [](SmallRunOptions* options) { options->shares_weights = true; }},
    {"a divided optimizer", [](SmallRunOptions* options) { options->sync.shard_optimizer = true; }},
    {"packed gradients",
     [](SmallRunOptions* options) { options->sync.sparse_allreduce = "always"; }},
    {"small buckets during backward", [](SmallRunOptions* options) {
       options->sync.bucket_bytes = 300;
       options->sync.overlap = "true";
     }}};

SmallRunOptions options_of(const std::string& optimizer, const std::string& situation) {
  SmallRunOptions options;
  options.model = model::mlp({.layers = {3, 17, 9, 4}, .activation = "tanh"});
  options.global_batch = 8;
  options.num_samples = 32;
  options.optimizer = optim::default_options(optimizer);
  options.optimizer.weight_decay = 0.01;
  options.sync = {.bucket_bytes = 1 << 20, .overlap = "false", .sparse_allreduce = "never"};
  kSituations.at(situation)(&options);
  return options;
}

struct Trained {
  std::map<std::string, at::Tensor> state;
  int num_skipped = 0;
};

Trained train(const SmallRunOptions& options, int world_size) {
  Trained trained;
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    SmallRun run(comm, options);
    int num_skipped = 0;
    for (int step = 0; step < kSteps; ++step) num_skipped += run.step().skipped ? 1 : 0;
    run.require_equal_ranks();
    const StateList state = run.state();
    if (comm.rank() != 0) return;
    trained.num_skipped = num_skipped;
    for (const StateEntry& entry : state) trained.state[entry.key] = entry.tensor.clone();
  });
  return trained;
}

class SharedWeights : public ::testing::TestWithParam<std::string> {};

/// True if the test runs this case. make soak runs the whole table of mechanisms, situations and
/// ranks. make test runs all cases of the one copy of the weights, and the closest cases of the
/// others.
bool is_run(const std::string& mechanism, const std::string& situation, int world_size) {
  if (mechanism == "one copy of the weights" || std::getenv("LOCKSTEP_SOAK") != nullptr)
    return true;
  return world_size == 2 &&
         (situation == "frozen" || situation == "clipped" || situation == "fp16");
}

/// Every optimizer, in every situation, on 1, 2 and 4 ranks, with each mechanism and without.
TEST_P(SharedWeights, TrainTheSameBitsAsDoOtherMechanisms) {
  for (const auto& [situation, unused] : kSituations)
    for (const int world_size : {1, 2, 4}) {
      const SmallRunOptions plain = options_of(GetParam(), situation);
      const Trained expected = train(plain, world_size);
      EXPECT_EQ(expected.num_skipped > 0, situation == "fp16");
      for (const auto& [mechanism, use] : kMechanisms) {
        if (!is_run(mechanism, situation, world_size)) continue;
        SmallRunOptions options = plain;
        use(&options);
        const Trained found = train(options, world_size);
        EXPECT_EQ(found.num_skipped, expected.num_skipped);
        ASSERT_EQ(found.state.size(), expected.state.size());
        for (const auto& [name, tensor] : expected.state)
          EXPECT_TRUE(at::equal(tensor, found.state.at(name)))
              << mechanism << ", " << situation << ", " << world_size << " ranks: " << name;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SharedWeights, ::testing::ValuesIn(optim::optimizer_types()));

TEST(SharedWeights, AreInOneMemory) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    SmallRunOptions options = options_of("adam", "frozen");
    options.shares_weights = true;
    SmallRun run(comm, options);
    for (int step = 0; step < 8; ++step) {  // with a new layout in between
      run.step();
      comm.barrier();
      const at::Tensor weight = run.model->params()[0].tensor.detach();
      if (comm.rank() == 1) weight.view(-1)[0] = 7.0F + static_cast<float>(step);
      comm.barrier();
      EXPECT_EQ(weight.view(-1)[0].item<float>(), 7.0F + static_cast<float>(step));
      comm.barrier();
    }
  });
}

/// Reason that `on` gives where ranks cannot share, with two ranks that could; "" if they do.
/// `network`: in the place of the run's own.
std::string refusal(const std::function<void(ShareWeightsParts*, tests::SpyCommunicator*)>& change,
                    model::Model* network = nullptr) {
  std::string text;
  tests::run_ranks(2, [&](dist::Communicator& comm) {
    SmallRunOptions options = options_of("adam", "plain");
    options.sync.share_weights = "on";
    SmallRun run(comm, options);
    tests::SpyCommunicator gradients(*run.gradients);
    dist::ProcessInfo process{.rank = comm.rank(), .world_size = 2, .local_world_size = 2};
    model::Model& model = network == nullptr ? *run.model : *network;
    ShareWeightsParts parts{options.sync, model,     run.flat_params, run.recipe,
                            comm,         gradients, process};
    change(&parts, &gradients);
    try {
      share_weights(parts);
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kConfig);
      EXPECT_TRUE(fault.on_every_rank());
      if (comm.rank() == 0) text = fault.what();
    }
  });
  return text;
}

TEST(SharedWeights, AreRefusedWithTheReason) {
  using Spy = tests::SpyCommunicator;
  EXPECT_THAT(
      refusal([](ShareWeightsParts* parts, Spy*) {
        const_cast<dist::ProcessInfo&>(parts->process).num_nodes = 2;
      }),
      HasSubstr("sync.share_weights: on is not possible: the ranks are on 2 hosts; use auto"));
  EXPECT_THAT(refusal([](ShareWeightsParts*, Spy* gradients) {
                gradients->pretended_device = at::Device(at::kCUDA, 0);
              }),
              HasSubstr("the weights are on GPUs"));
  EXPECT_THAT(refusal([](ShareWeightsParts* parts, Spy*) { parts->has_users_hooks = true; }),
              HasSubstr("the estimator's hooks are user code, which may write weights"));
  class UsersNetwork final : public model::Model {
    bool runs_user_code() const override { return true; }
    at::Tensor forward(const at::Tensor& inputs_BX) override { return inputs_BX; }
  } network;
  EXPECT_THAT(refusal([](ShareWeightsParts*, Spy*) {}, &network),
              HasSubstr("the network is user code, which may write weights on each rank"));
}

}  // namespace shared_weights_test
}  // namespace lockstep::train
