// A step that is left out, as a stop came while a rank waited for its data: on all ranks, and no
// bit of what follows is another.
#include "train/step/trainer.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "model/networks/small_networks.h"
#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace data_wait_test {

using tests::SmallRun;
using tests::SmallRunOptions;

constexpr int kSteps = 7;
// Before the first step, where masks are due, and where the other ranks wait in the reduction.
const std::set<int> kHeld{0, 2, 3};

constexpr const char* kPruned = R"(version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_step: 2, end_step: 9, update_frequency_steps: 3}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
)";

/// Random numbers of which some batches do not come before they are let through.
class HeldData final : public data::Dataset {
 public:
  HeldData(const data::Dataset& numbers, std::set<int> held)
      : numbers_(numbers), held_(std::move(held)) {}

  int64_t num_samples() const override { return numbers_.num_samples(); }
  data::SampleSpec spec() const override { return numbers_.spec(); }
  std::string digest() const override { return numbers_.digest(); }
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    {
      std::unique_lock lock(mutex_);
      const int batch = num_batches_++;
      let_through_.wait(lock, [&] { return !held_.contains(batch); });
    }
    return numbers_.get(indices_B, epoch);
  }
  /// All, or the batch of that number.
  void let_through(std::optional<int> batch = std::nullopt) {
    {
      const std::lock_guard lock(mutex_);
      batch ? static_cast<void>(held_.erase(*batch)) : held_.clear();
    }
    let_through_.notify_all();
  }

 private:
  const data::Dataset& numbers_;
  mutable std::mutex mutex_;
  mutable std::condition_variable let_through_;
  mutable int num_batches_ = 0;
  std::set<int> held_;
};

/// Releases the data before the loader joins its threads, however a run ends.
struct LetThrough {
  HeldData& held;
  ~LetThrough() { held.let_through(); }
};

class Told final : public StopRequest {
 public:
  void set_stop_signals(const std::vector<int>&) override {}
  bool stop_asked() const override { return stop; }
  bool end_asked() const override { return false; }
  int64_t num_saves_asked() const override { return 0; }
  int64_t num_received(int) const override { return 0; }

  std::atomic<bool> stop{false};
};

using Change = void (*)(SmallRunOptions*);

void normalise(const std::string& how, SmallRunOptions* options) {
  options->model = model::cnn({.channels = {3}, .hidden = 6, .batch_norm = true});
  options->shape = {1, 4, 4};
  options->train.batch_norm = how;
}

/// Situations of a run, by name.
const std::map<std::string, Change> kSituations{
    {"divided",
     [](SmallRunOptions* options) {
       options->sync.shard_optimizer = true;
       options->optimizer.clip = {.norm = 0.3};
     }},
    {"one copy", [](SmallRunOptions* options) { options->shares_weights = true; }},
    {"elastic", [](SmallRunOptions* options) { options->elastic = true; }},
    {"elastic, normalised",
     [](SmallRunOptions* options) {
       normalise("average", options);
       options->elastic = true;
     }},
    {"average", [](SmallRunOptions* options) { normalise("average", options); }},
    {"broadcast", [](SmallRunOptions* options) { normalise("broadcast", options); }},
    {"sync", [](SmallRunOptions* options) { normalise("sync", options); }},
    {"rounded", [](SmallRunOptions* options) { options->sync.comm_dtype = "bf16"; }},
    {"half precision", [](SmallRunOptions* options) {
       options->train.precision = "fp16";
       options->train.loss_scale = {.initial_exponent = 10, .growth_steps = 3};
       options->optimizer.ema_decay = 0.9;
     }}};

SmallRunOptions options_of(const std::string& situation) {
  SmallRunOptions options;
  options.global_batch = 8;
  options.num_samples = 32;
  options.optimizer = optim::default_options("adam");
  options.recipe = kPruned;
  kSituations.at(situation)(&options);
  return options;
}

using State = std::map<std::string, at::Tensor>;

State state_of(SmallRun* run) {
  State state;
  for (const StateEntry& entry : run->state()) state[entry.key] = entry.tensor.clone();
  return state;
}

void expect_same(const State& found, const State& expected, const std::string& when) {
  ASSERT_EQ(found.size(), expected.size()) << when;
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << when << ": " << name;
}

data::RandomDataset numbers_of(const SmallRunOptions& options) {
  return data::RandomDataset({.shape = options.shape,
                              .classes = options.num_classes,
                              .samples = options.num_samples,
                              .seed = 1,
                              .tokens = options.tokens});
}

/// The last rank is told to stop while it waits; the others are asked to continue at last.
void leave_out(SmallRun* run, Told* told, bool waits) {
  const State before = state_of(run);
  const data::SamplerPosition position = run->sampler.position();
  const int64_t step = run->clock.step;
  told->stop = waits;
  const StepReport report = run->trainer.step({.stop = waits});
  EXPECT_TRUE(report.is_left_out) << step;
  EXPECT_TRUE(report.wants_stop) << step;
  EXPECT_EQ(report.step, step);
  EXPECT_EQ(run->clock.step, step);
  EXPECT_EQ(run->sampler.position(), position);
  run->require_equal_ranks();
  expect_same(state_of(run), before, "left out");
  told->stop = false;
}

State train(const SmallRunOptions& options, dist::Communicator& comm, bool stops) {
  SmallRunOptions own = options;
  const data::RandomDataset numbers = numbers_of(options);
  const bool waits = comm.rank() == comm.world_size() - 1;
  HeldData held(numbers, stops && waits ? kHeld : std::set<int>{});
  Told told;
  own.data = &held;
  own.loader = {.num_threads = 1, .prefetch_batches = 1};
  own.stop = &told;
  SmallRun run(comm, own);
  const LetThrough at_the_end{held};
  for (int step = 0; step < kSteps; ++step) {
    if (stops && kHeld.contains(step)) {
      leave_out(&run, &told, waits);
      held.let_through(step);
    }
    EXPECT_FALSE(run.step().is_left_out) << step;
  }
  run.require_equal_ranks();
  return state_of(&run);
}

class LeftOutStep : public ::testing::TestWithParam<std::string> {};

TEST_P(LeftOutStep, ChangesNoBitOnAnyRank) {
  const SmallRunOptions options = options_of(GetParam());
  for (const int world_size : {1, 2})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      const State unbroken = train(options, comm, /*stops=*/false);
      expect_same(train(options, comm, /*stops=*/true), unbroken, "at the end");
    });
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, change] : kSituations) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Situations, LeftOutStep, ::testing::ValuesIn(names()));

}  // namespace data_wait_test
}  // namespace lockstep::train
