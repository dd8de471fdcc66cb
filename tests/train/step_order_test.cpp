#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recal/recipe/recipe_reader.h"
#include "tests/dist/spy_communicator.h"
#include "tests/support/thread_world.h"
#include "tests/train/small_run.h"
#include "train/step/step_modes.h"

namespace lockstep::train {
namespace step_order_test {

using ::testing::ElementsAre;
using Calls = std::vector<std::string>;

/// Calls of a step in order; of equal calls in a row, the first.
class Record {
 public:
  void add(const std::string& call) {
    const std::lock_guard lock(mutex_);
    if (calls_.empty() || calls_.back() != call) calls_.push_back(call);
  }
  Calls take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }

 private:
  std::mutex mutex_;
  Calls calls_;
};

class RecordedData final : public data::Dataset {
 public:
  explicit RecordedData(Record& record) : record_(record) {}
  int64_t num_samples() const override { return data_.num_samples(); }
  data::SampleSpec spec() const override { return data_.spec(); }
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    record_.add("data");
    return data_.get(indices_B, epoch);
  }
  std::string digest() const override { return data_.digest(); }

 private:
  Record& record_;
  data::RandomDataset data_{{3}, 4, 16, 1};
};

/// One linear layer, which tells what its weight was when it was used.
class RecordedModel final : public model::Model {
 public:
  explicit RecordedModel(Record& record) : record_(record) {
    at::Tensor weight = at::arange(12, at::kFloat).view({4, 3}).add(1).mul(0.01);
    table_.params.push_back({"layer.weight", weight.set_requires_grad(true), true, true});
  }
  at::Tensor forward(const at::Tensor& inputs_BX) override {
    const at::Tensor& weight = table_.params[0].tensor;
    const auto num_zeros = (weight == 0).sum().item<int64_t>();
    record_.add("forward with " + std::to_string(num_zeros) + " pruned");
    at::Tensor logits = at::matmul(inputs_BX, weight.t());
    logits.register_hook([this](const at::Tensor&) { record_.add("backward"); });
    return logits;
  }

 private:
  Record& record_;
};

class RecordedOptimizer final : public optim::Optimizer {
 public:
  RecordedOptimizer(std::vector<FlatBuffer>& buffers, const ParamTable& params, Record& record)
      : Optimizer({}, buffers, params), record_(record) {}

 private:
  void update(const FlatBuffer&, optim::SlotPart*, const optim::GroupRates&) override {
    record_.add("update");
  }
  Record& record_;
};

constexpr const char* kRecipe = R"(version: 1.0.0
modifiers:
  - !GMPruningModifier {params: __ALL__, init_sparsity: 0.5, final_sparsity: 0.5, start_epoch: 0.25, end_epoch: 0.75, update_frequency: 0.5}
)";

/// A rank whose every part tells when it is called.
struct RecordedRank {
  RecordedRank(dist::Communicator& comm, const dist::SyncOptions& sync)
      : control(comm),
        gradients_comm(comm.split(0, comm.rank())),
        gradients(*gradients_comm),
        data(record),
        sampler({.num_samples = 16, .global_batch_size = 4, .seed = 2}),
        loader(data, sampler, comm.rank(), comm.world_size()),
        clock{.step = 0, .steps_per_epoch = sampler.steps_per_epoch()},
        model(record),
        flat_params(model.params(), {{0}}, at::kCPU),
        reducer(gradients, flat_params.buffers(), model.params(), sync),
        optimizer(flat_params.buffers(), model.params(), record),
        recipe(attached()),
        loss("auto", {}, data.spec()),
        trainer({.control = control,
                 .loader = loader,
                 .model = model,
                 .flat_params = flat_params,
                 .reducer = reducer,
                 .optimizer = optimizer,
                 .optimizer_options = options,
                 .recipe = recipe,
                 .loss = loss,
                 .loss_scale = loss_scale,
                 .ema = ema,
                 .clock = clock,
                 .mode = mode,
                 .total_steps = 100,
                 .before_changes = [this] { record.add("before changes"); }},
                TrainOptions{}) {
    control.before_reduction = [this](int) { record.add("agree"); };
    gradients.before_reduction = [this](int) { record.add("reduce"); };
    gradients.before_gather = [this] { record.add("gather"); };
  }

  Calls step() {
    (void)record.take();
    (void)trainer.step({});
    return record.take();
  }

  recal::ScheduledModifierManager attached() {
    Diagnostics faults;
    recal::ScheduledModifierManager manager(recal::parse_recipe("test.yaml", kRecipe, &faults));
    manager.attach(model.params(), {.steps_per_epoch = clock.steps_per_epoch}, &faults);
    faults.throw_if_any("test");
    return manager;
  }

  Record record;
  tests::SpyCommunicator control;
  std::unique_ptr<dist::Communicator> gradients_comm;
  tests::SpyCommunicator gradients;
  RecordedData data;
  data::Sampler sampler;
  data::Loader loader;
  StepClock clock;
  RecordedModel model;
  optim::FlatParams flat_params;
  dist::GradientReducer reducer;
  RecordedOptimizer optimizer;
  recal::ScheduledModifierManager recipe;
  optim::OptimizerOptions options;
  Loss loss;
  LossScale loss_scale;
  optim::Ema ema{std::nullopt, model.params()};
  Synchronous mode{control};
  Trainer trainer;
};

TEST(StepOrder, WhatIsDueComesFirstAndTheUpdateLast) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    RecordedRank rank(comm, {.overlap = "false", .sparse_allreduce = "never"});
    // The recipe begins, and the reducer hears of its masks for the first time: they are compared
    // before backward.
    EXPECT_THAT(rank.step(),
                ElementsAre("data", "before changes", "forward with 0 pruned", "reduce", "backward",
                            "reduce", "before changes", "update"));
    // New masks: a save may read what they change; they are agreed and act on this very forward.
    EXPECT_THAT(rank.step(),
                ElementsAre("data", "before changes", "agree", "forward with 6 pruned", "reduce",
                            "backward", "reduce", "before changes", "update"));
    EXPECT_THAT(rank.step(), ElementsAre("data", "forward with 6 pruned", "backward", "reduce",
                                         "before changes", "update"));
  });
}

TEST(StepOrder, DividedUpdatesAreGatheredLast) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    RecordedRank rank(comm,
                      {.overlap = "false", .sparse_allreduce = "never", .shard_optimizer = true});
    (void)rank.step();
    (void)rank.step();
    EXPECT_THAT(rank.step(), ElementsAre("data", "forward with 6 pruned", "backward", "reduce",
                                         "before changes", "update", "gather"));
  });
}

}  // namespace step_order_test
}  // namespace lockstep::train
