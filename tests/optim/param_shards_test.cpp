#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/flat_training.h"

namespace lockstep::optim {
namespace param_shards_test {

/// Ranks that own parts, with the cuts at any element; each holds all values, as after a gather.
struct Ranks {
  Ranks(const OptimizerOptions& options, const std::vector<int64_t>& cuts) {
    for (size_t r = 0; r + 1 < cuts.size(); ++r) {
      ranks.push_back(std::make_unique<Training>(options));
      set_shards(r, cuts);
    }
  }
  void set_shards(size_t rank, const std::vector<int64_t>& cuts) {
    std::vector<ParamShard> regions{{0, cuts[rank], cuts[rank + 1]}};
    if (rank == 0) regions.push_back({1, 0, 19});
    if (cuts[rank] == cuts[rank + 1]) regions.erase(regions.begin());
    owned.resize(std::max(owned.size(), rank + 1));
    owned[rank] = regions;
    ranks[rank]->optimizer->set_shards(regions);
  }
  void step() {
    for (const auto& rank : ranks) rank->step();
    for (size_t from = 0; from < ranks.size(); ++from)
      for (const ParamShard& region : owned[from])
        for (const auto& rank : ranks) {
          const auto part = [&](Training& one) {
            return one.flat_params.buffers()[region.buffer].values_E.narrow(0, region.begin_E,
                                                                            region.num_elements());
          };
          if (rank != ranks[from]) part(*rank).copy_(part(*ranks[from]));
        }
  }
  /// Completes the states as an all-reduce of sharded_state() does on every rank.
  void complete() {
    std::vector<StateList> lists;
    for (const auto& rank : ranks) lists.push_back(rank->optimizer->sharded_state());
    for (size_t i = 0; i < lists[0].size(); ++i) {
      at::Tensor sum = at::zeros_like(lists[0][i].tensor);
      for (const StateList& list : lists) sum.add_(list[i].tensor);
      for (const StateList& list : lists) list[i].tensor.copy_(sum);
    }
  }

  std::vector<std::unique_ptr<Training>> ranks;
  std::vector<std::vector<ParamShard>> owned;
};

const std::vector<int64_t> kThree{0, 1003, 1003, 4210};
const std::vector<int64_t> kTwo{0, 2561, 4210};

class OwnedRegions : public ::testing::TestWithParam<OptimizerOptions> {};
INSTANTIATE_TEST_SUITE_P(Rules, OwnedRegions, ::testing::ValuesIn(options_with_slots()));

TEST_P(OwnedRegions, NoBitDependsOnHowRegionsAreCut) {
  Training whole(GetParam());
  Ranks divided(GetParam(), kThree);
  for (const double kept : {1.0, 0.7, 0.3, 0.1}) {
    whole.prune(kept, true);
    for (const auto& rank : divided.ranks) rank->prune(kept, true);
    for (int i = 0; i < 3; ++i) whole.step(), divided.step();
    for (const auto& rank : divided.ranks)
      for (size_t i = 0; i < whole.params.size(); ++i)
        EXPECT_TRUE(at::equal(whole.params[i].tensor, rank->params[i].tensor)) << kept << " " << i;
  }
  const StateList of_whole = whole.optimizer->state();
  const auto num_slots = static_cast<size_t>(
      std::count_if(of_whole.begin(), of_whole.end(),
                    [](const StateEntry& entry) { return entry.tensor.is_floating_point(); }));
  divided.complete();
  for (const auto& rank : divided.ranks)
    EXPECT_EQ(rank->optimizer->sharded_state().size(), num_slots);
}

TEST_P(OwnedRegions, OwnedPartsMakeUpTheWhole) {
  Training whole(GetParam());
  Ranks divided(GetParam(), kThree);
  whole.prune(0.3, true);
  for (const auto& rank : divided.ranks) rank->prune(0.3, true);
  for (int i = 0; i < 3; ++i) whole.step(), divided.step();
  int64_t num_bytes = 0;
  for (const auto& rank : divided.ranks) num_bytes += rank->optimizer->slot_bytes();
  EXPECT_EQ(num_bytes, whole.optimizer->slot_bytes());
  EXPECT_LT(divided.ranks[0]->optimizer->slot_bytes(), num_bytes / 2);

  std::vector<StateList> states;
  for (const auto& rank : divided.ranks) states.push_back(rank->optimizer->state());
  divided.complete();
  for (const StateList& state : states) expect_same_state(state, whole.optimizer->state());
  for (const auto& rank : divided.ranks) (void)rank->optimizer->state();  // zeros again
  divided.complete();
  expect_same_state(states[1], whole.optimizer->state());
}

TEST_P(OwnedRegions, GoesOnWithOtherCuts) {
  Training whole(GetParam());
  Ranks divided(GetParam(), kThree);
  whole.prune(0.3, true);
  for (const auto& rank : divided.ranks) rank->prune(0.3, true);
  for (int i = 0; i < 2; ++i) whole.step(), divided.step();
  divided.complete();
  divided.ranks.pop_back();
  divided.owned.pop_back();
  for (size_t rank = 0; rank < 2; ++rank) {
    divided.set_shards(rank, kTwo);
    divided.ranks[rank]->prune(0.3, true);
  }
  for (int i = 0; i < 2; ++i) whole.step(), divided.step();
  for (const auto& rank : divided.ranks)
    for (size_t i = 0; i < whole.params.size(); ++i)
      EXPECT_TRUE(at::equal(whole.params[i].tensor, rank->params[i].tensor)) << i;
}

/// Cuts inside of slices, of chunks of a mask, and at a buffer's ends; slots dense and packed.
TEST_P(OwnedRegions, GradientsThatComeLateChangeNoBit) {
  Training whole(GetParam()), late(GetParam());
  const std::vector<std::vector<ParamShard>> cases{
      {{0, 3000, 4210}}, {{1, 0, 19}, {0, 1003, 2001}, {0, 0, 37}}, {{0, 0, 4210}, {1, 0, 19}}};
  for (const double kept : {1.0, 0.7, 0.3, 0.0}) {
    whole.prune(kept, true), late.prune(kept, true);
    for (const std::vector<ParamShard>& regions : cases) {
      whole.steps(2);
      late.step_late(regions);
      late.step_late(regions);
      for (size_t i = 0; i < whole.params.size(); ++i)
        EXPECT_TRUE(at::equal(whole.params[i].tensor, late.params[i].tensor)) << kept << " " << i;
    }
    expect_same_state(late.optimizer->state(), whole.optimizer->state());
  }
  EXPECT_THROW(late.step_late({{0, 4000, 4211}}), Error);
}

TEST(Regions, DescentWithoutSlotsUpdatesOnlyThem) {
  Training part({.type = "sgd"}), whole({.type = "sgd"});
  part.optimizer->set_shards({{0, 37, 1000}});
  for (Training* one : {&part, &whole}) {
    one->prune(0.3, true);
    one->steps(2);
  }
  const at::Tensor values = part.flat_params.buffers()[0].values_E;
  const at::Tensor updated = whole.flat_params.buffers()[0].values_E;
  EXPECT_TRUE(at::equal(values.narrow(0, 37, 963), updated.narrow(0, 37, 963)));
  EXPECT_FALSE(at::equal(values.narrow(0, 0, 37), updated.narrow(0, 0, 37)));
  EXPECT_TRUE(at::equal(part.params[1].tensor, at::ones({19})));
}

/// Their slots are whole on every rank, or those of one that thaws would be gone.
TEST(Regions, LeaveFrozenBuffersWhole) {
  Training training(kAdam);
  training.steps(2);
  const at::Tensor moment = training.optimizer->slots_of(2)[0].clone();
  training.optimizer->rebuild(training.flat_params.flatten({{0}, {2}, {1}}, {true, true, false}));
  training.optimizer->set_shards({{0, 0, 100}});
  training.step();
  EXPECT_TRUE(at::equal(training.optimizer->slots_of(2)[0], moment));
  for (const StateEntry& entry : training.optimizer->sharded_state())
    EXPECT_EQ(entry.key.find("optimizer/b/"), std::string::npos);
  EXPECT_EQ(training.optimizer->sharded_state().size(), 4U);  // a.weight and a.bias, two slots each
}

TEST(Regions, ThatOverlapOrLeaveTheirBufferAreBugs) {
  Training training(kAdam);
  EXPECT_THROW(training.optimizer->set_shards({{0, 0, 10}, {0, 9, 20}}), Error);
  EXPECT_THROW(training.optimizer->set_shards({{0, 0, 1 << 20}}), Error);
}

}  // namespace param_shards_test
}  // namespace lockstep::optim
