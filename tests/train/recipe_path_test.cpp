// One recipe with every modifier: equal weights give equal decisions at every world size, and a run
// stopped at any step and resumed takes the same path.
#include <algorithm>
#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/digest.h"
#include "base/random.h"
#include "model/model.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/modifier_table.h"
#include "support/thread_world.h"
#include "train/step/buffers.h"

namespace lockstep::train {
namespace recipe_path_test {

constexpr int64_t kStepsPerEpoch = 4, kSteps = 40, kBucketBytes = 256, kBatch = 8;

constexpr const char* kEveryModifier = R"(
version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 10}
  - !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.2}
  - !LearningRateModifier
    {start_epoch: 1, end_epoch: 3, lr_class: StepLR, lr_kwargs: {gamma: 0.5, step: 0.5}, init_lr: 0.1}
  - !LearningRateModifier
    {start_epoch: 3, end_epoch: 4, lr_class: ExponentialLR, lr_kwargs: {gamma: 0.5}, init_lr: 0.1}
  - !LearningRateModifier
    {start_epoch: 4, end_epoch: 5, lr_class: MultiStepLR, lr_kwargs: {gamma: 0.5, milestones: [4.5]}}
  - !LearningRateModifier
    {start_epoch: 5, end_epoch: 7, lr_class: CosineAnnealingWarmRestarts,
     lr_kwargs: {lr_min: 0.01, cycle_epochs: 1}, init_lr: 0.1}
  - !LearningRateFunctionModifier
    {start_epoch: 7, end_epoch: 10, lr_func: linear, init_lr: 0.1, final_lr: 0.01}
  - !SetWeightDecayModifier {start_epoch: 2, weight_decay: 0.01}
  - !TrainableParamsModifier
    {params: ['layers.1'], trainable: false, start_epoch: 1.5, end_epoch: 4}
  - !GMPruningModifier
    {params: ['layers.0'], init_sparsity: 0.05, final_sparsity: 0.7, start_epoch: 1, end_epoch: 5,
     update_frequency: 0.5, momentum_buffer_reset: true}
  - !GradualKSModifier
    {params: ['layers.1'], init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 2, end_epoch: 6,
     update_frequency: 0.75, mask_type: '2:4'}
  - !ConstantKSModifier {params: ['layers.0']}
  - !SetParamModifier {params: ['layers.2.bias'], val: 0.25, start_epoch: 3}
  - !GradualParamModifier
    {params: ['layers.1.bias'], init_val: 0.0, final_val: 1.0, start_epoch: 5, end_epoch: 6,
     update_frequency: 0.25}
  - !OBSPruningModifier
    {params: ['layers.2'], init_sparsity: 0.1, final_sparsity: 0.3, start_epoch: 1, end_epoch: 2,
     update_frequency: 0.5, num_grads: 3, fisher_block_size: 2}
  - !MFACPruningModifier
    {params: ['layers.2'], init_sparsity: 0.3, final_sparsity: 0.4, start_epoch: 2, end_epoch: 3,
     update_frequency: 0.5, num_grads: 3, fisher_block_size: 8}
  - !MovementPruningModifier
    {params: ['layers.2'], init_sparsity: 0.4, final_sparsity: 0.5, start_epoch: 3, end_epoch: 4,
     update_frequency: 0.5}
  - !ACDCPruningModifier
    {params: ['layers.2'], compression_sparsity: 0.6, start_epoch: 5, end_epoch: 9,
     update_frequency: 1}
  - !DistillationModifier {start_epoch: 2, end_epoch: 8}
  - !QuantizationModifier {start_epoch: 7, disable_quantization_observer_epoch: 9}
)";

at::Tensor numbers(int64_t seed, at::IntArrayRef shape) {
  const CounterRandom random{seed};
  at::Tensor values = at::empty(shape);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] =
        static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
  return values;
}

std::string digest_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().contiguous();
  return sha256_hex(
             std::string_view(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()))
      .substr(0, 16);
}

/// One rank. Gradients and layer inputs are numbers of (step, parameter), the same in every world.
struct Rank {
  explicit Rank(dist::Communicator& comm_, const std::string& optimizer_type = "momentum",
                const std::string& recipe_text = kEveryModifier)
      : comm(comm_),
        options{.type = optimizer_type, .learning_rate = 0.05},
        model(model::mlp({.layers = {8, 8, 4, 4}, .activation = "tanh"}).make({{8}, 4, 17})),
        all_trainable(model->params().size(), true),
        flat_params(model->params(), plan_layout(model->params(), all_trainable, kBucketBytes),
                    at::kCPU),
        optimizer(optim::make_optimizer(options, flat_params.buffers(), model->params())),
        recipe(read_recipe(recipe_text)) {
    Diagnostics faults;
    recipe.attach(model->params(),
                  {.steps_per_epoch = kStepsPerEpoch,
                   .base_learning_rate = options.learning_rate,
                   .layers = model->layers(),
                   .teacher = recal::TeacherChoice::kGiven,
                   .rank = comm.rank(),
                   .world_size = comm.world_size()},
                  &faults);
    faults.throw_if_any("test");
  }

  static recal::ScheduledModifierManager read_recipe(const std::string& text) {
    Diagnostics faults;
    recal::Recipe recipe = recal::parse_recipe("all.yaml", text, &faults);
    faults.throw_if_any("test");
    return recal::ScheduledModifierManager(std::move(recipe));
  }

  /// One step; returns every decision of it as text.
  std::string step() {
    const recal::AppliedActions due = recipe.apply_due(now, comm);
    apply_recipe_changes(due, recipe, kBucketBytes, flat_params, *optimizer, comm);
    show_inputs();
    for (size_t i = 0; i < model->params().size(); ++i) {
      at::Tensor grad = model->params()[i].tensor.grad();
      if (grad.defined()) grad.copy_(numbers(1000 * now + static_cast<int64_t>(i), grad.sizes()));
    }
    recipe.mask_gradients();
    const optim::StepRates rates = rates_at(now, options, recipe.timeline(), kSteps);
    optimizer->step(rates);
    recipe.end_step(true, comm);
    expect_no_moments_of_pruned_weights();
    const std::string decisions = describe(rates);
    ++now;
    return decisions;
  }

  /// Each rank sees its share of a global batch.
  void show_inputs() {
    if (recipe.layer_hook() == nullptr) return;  // a recipe that does not quantize
    const int64_t share = kBatch / comm.world_size();
    for (size_t i = 0; i < model->layers().size(); ++i) {
      const at::Tensor global = numbers(7000 + 10 * now + static_cast<int64_t>(i), {kBatch, 3});
      const auto layer = static_cast<int64_t>(i);
      recipe.layer_hook()->input(layer, global.narrow(0, share * comm.rank(), share));
      recipe.layer_hook()->weight(layer, model->params()[2 * i].tensor);
    }
  }

  void expect_no_moments_of_pruned_weights() {
    for (const recal::Mask& mask : recipe.masks().all()) {
      for (const at::Tensor& slot : optimizer->slots_of(mask.param)) {
        const at::Tensor rest = slot.clone();
        recipe.zero_pruned(mask.param, rest);
        EXPECT_TRUE(at::equal(rest, slot)) << mask.name << " at step " << now;
      }
    }
    EXPECT_EQ(recipe.masks().count_revived(), 0);
  }

  std::string describe(const optim::StepRates& rates) {
    std::string text = fmt::format("step {}:", now);
    for (const optim::GroupRates& group : rates)
      text += fmt::format(" rate {} decay {}", group.learning_rate, group.weight_decay);
    for (const recal::Mask& mask : recipe.masks().all())
      text += fmt::format(" mask {}", digest_of(mask.kept_bits));
    for (const Param& param : model->params())
      text += fmt::format(" {}{}", param.tensor.requires_grad() ? "" : "frozen ",
                          digest_of(param.tensor));
    for (const StateEntry& entry : state())
      if (!entry.held) text += " " + digest_of(entry.tensor);  // of all ranks together
    return text;
  }

  /// Content of a checkpoint.
  StateList state() {
    StateList all;
    for (const Param& param : model->params())
      all.push_back({"model/" + param.name, param.tensor.detach(), nullptr});
    for (const StateList& part : {optimizer->state(), recipe.state()})
      all.insert(all.end(), part.begin(), part.end());
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    return all;
  }

  dist::Communicator& comm;
  optim::OptimizerOptions options;
  std::unique_ptr<model::Model> model;
  std::vector<bool> all_trainable;
  optim::FlatParams flat_params;
  std::unique_ptr<optim::Optimizer> optimizer;
  recal::ScheduledModifierManager recipe;
  int64_t now = 0;
};

using Saved = std::map<std::string, at::Tensor>;

struct Path {
  std::vector<std::string> decisions;      // by step
  std::vector<std::vector<Saved>> states;  // before each step, and at the end; by rank
};

Saved copies(const StateList& state) {
  Saved all;
  for (const StateEntry& entry : state) all[entry.key] = entry.tensor.clone();
  return all;
}

Path whole_run(int world_size, const std::string& optimizer_type = "momentum",
               const std::string& recipe_text = kEveryModifier) {
  Path path;
  path.states.resize(kSteps + 1, std::vector<Saved>(static_cast<size_t>(world_size)));
  tests::run_ranks(world_size, [&](dist::Communicator& comm) {
    Rank rank(comm, optimizer_type, recipe_text);
    const auto own = static_cast<size_t>(comm.rank());
    for (int64_t step = 0; step < kSteps; ++step) {
      path.states[static_cast<size_t>(step)][own] = copies(rank.state());
      const std::string decisions = rank.step();
      if (comm.rank() == 0) path.decisions.push_back(decisions);
    }
    (void)rank.recipe.apply_closing(kSteps, comm);
    path.states.back()[own] = copies(rank.state());
  });
  return path;
}

TEST(RecipePath, EveryWorldTakesTheSameDecisions) {
  const Path alone = whole_run(1);
  ASSERT_EQ(alone.decisions.size(), static_cast<size_t>(kSteps));
  for (const int world_size : {2, 4}) {
    const Path path = whole_run(world_size);
    for (size_t step = 0; step < path.decisions.size(); ++step)
      ASSERT_EQ(path.decisions[step], alone.decisions[step]) << world_size << " ranks";
  }
}

/// The items of kEveryModifier, each from its "- !" on.
std::vector<std::string> items() {
  std::vector<std::string> found;
  const std::string text = kEveryModifier, mark = "  - !";
  for (size_t at = text.find(mark), next; at != std::string::npos; at = next) {
    next = text.find(mark, at + 1);
    found.push_back(text.substr(at, next == std::string::npos ? next : next - at));
  }
  return found;
}

std::string without(std::string text, const std::string& item) {
  return text.replace(text.find(item), item.size(), "");
}

bool are_equal(const Saved& one, const Saved& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && at::equal(a.second, b.second);
                    });
}

bool are_equal(const Path& one, const Path& other) {
  return one.decisions == other.decisions &&
         are_equal(one.states.back().front(), other.states.back().front());
}

TEST(RecipePath, WithoutAnyOfItsItemsARecipeTakesAnotherPath) {
  const Path whole = whole_run(1);
  ASSERT_TRUE(are_equal(whole, whole_run(1)));
  ASSERT_GE(items().size(), recal::modifier_kinds().names().size());
  for (const std::string& item : items()) {
    // How long a run is, which is kSteps here, a mask that nothing else would change, and a loss.
    const bool shows_nothing = item.find("!EpochRange") != std::string::npos ||
                               item.find("!ConstantKS") != std::string::npos ||
                               item.find("!Distillation") != std::string::npos;
    EXPECT_EQ(are_equal(whole, whole_run(1, "momentum", without(kEveryModifier, item))),
              shows_nothing)
        << item;
  }
}

TEST(RecipePath, EveryModifierLeavesATrace) {
  const Path path = whole_run(1);
  const auto contains = [&](size_t step, const std::string& text) {
    return path.decisions[step].find(text) != std::string::npos;
  };
  EXPECT_TRUE(contains(0, "rate 0.2 decay 0 "));
  EXPECT_TRUE(contains(8, "decay 0.01"));
  EXPECT_FALSE(contains(5, "frozen"));
  EXPECT_TRUE(contains(6, "frozen"));
  EXPECT_TRUE(contains(15, "frozen"));
  EXPECT_FALSE(contains(16, "frozen"));
  EXPECT_TRUE(contains(28, "rate 0.1 "));
}

/// A run that takes over `saved` before step `stop` must take the path of the unbroken one.
void expect_same_path_from(int64_t stop, const Path& unbroken, Rank* rank) {
  const auto own = static_cast<size_t>(rank->comm.rank());
  const Saved& saved = unbroken.states[static_cast<size_t>(stop)][own];
  for (const StateEntry& entry : rank->state()) {
    const at::NoGradGuard no_grad;
    if (saved.contains(entry.key))
      entry.tensor.copy_(saved.at(entry.key));
    else
      entry.tensor.fill_(entry.value_if_missing.value());
  }
  rank->now = stop;
  rank->recipe.restored(rank->comm);
  for (int64_t step = stop; step < kSteps; ++step)
    ASSERT_EQ(rank->step(), unbroken.decisions[static_cast<size_t>(step)]) << "stopped at " << stop;
  (void)rank->recipe.apply_closing(kSteps, rank->comm);
  EXPECT_TRUE(are_equal(copies(rank->state()), unbroken.states.back()[own]))
      << "stopped at " << stop;
}

struct World {
  int num_ranks;
  const char* optimizer;
};

class StoppedRecipePath : public ::testing::TestWithParam<World> {};

TEST_P(StoppedRecipePath, GoesOnAlikeFromAnyStep) {
  const auto [num_ranks, optimizer] = GetParam();
  const Path unbroken = whole_run(num_ranks, optimizer);
  for (int64_t stop = 0; stop <= kSteps; ++stop)
    tests::run_ranks(num_ranks, [&](dist::Communicator& comm) {
      Rank rank(comm, optimizer);
      expect_same_path_from(stop, unbroken, &rank);
    });
}

INSTANTIATE_TEST_SUITE_P(Worlds, StoppedRecipePath,
                         ::testing::Values(World{1, "momentum"}, World{2, "momentum"},
                                           World{4, "momentum"}, World{2, "adam"}),
                         [](const auto& test) {
                           return fmt::format("{}_{}", test.param.num_ranks, test.param.optimizer);
                         });

TEST(RecipePath, TheDecayOfWeightsFollowsItsSchedule) {
  dist::SelfCommunicator comm;
  const Rank rank(comm, "momentum", "version: 1.0.0\nmodifiers: []\n");
  const optim::OptimizerOptions options{.weight_decay = 0.1, .end_weight_decay = 0.3};
  const auto decay_at = [&](int64_t step) {
    const optim::StepRates rates = rates_at(step, options, rank.recipe.timeline(), 100);
    EXPECT_EQ(rates[kOtherGroup].weight_decay, 0);
    return rates[kWeightGroup].weight_decay;
  };
  EXPECT_EQ(decay_at(0), 0.1);
  EXPECT_NEAR(decay_at(50), 0.2, 1e-12);
  EXPECT_NEAR(decay_at(99), 0.3, 1e-4);
  EXPECT_NEAR(decay_at(200), 0.3, 1e-12) << "a run that goes on";
}

}  // namespace recipe_path_test
}  // namespace lockstep::train
