#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "optim/flat_training.h"

namespace lockstep::optim {
namespace packed_state_test {

class PackedState : public ::testing::TestWithParam<OptimizerOptions> {};
INSTANTIATE_TEST_SUITE_P(Rules, PackedState, ::testing::ValuesIn(options_with_slots()));

TEST_P(PackedState, TakesThePathOfDenseStateThroughGradualPruning) {
  Training packed(GetParam()), dense(GetParam());
  for (const double kept : {0.9, 0.6, 0.5, 0.3, 0.1, 0.02}) {
    for (Training* one : {&packed, &dense}) one->prune(kept, one == &packed);
    for (int i = 0; i < 4; ++i) {
      for (Training* one : {&packed, &dense}) one->step();
      expect_same_values(packed, dense);
    }
    expect_same_state(packed.optimizer->state(), dense.optimizer->state());
  }
}

TEST_P(PackedState, WeightsThatAreLetGoStartWithoutMoments) {
  Training packed(GetParam()), dense(GetParam());
  for (Training* one : {&packed, &dense}) {
    one->steps(2);
    one->prune(0.2, one == &packed);
    one->steps(3);
    one->prune(0.4, one == &packed);  // grows again
    one->steps(3);
    one->release(one == &packed);
    one->steps(3);
  }
  expect_same_values(packed, dense);
  expect_same_state(packed.optimizer->state(), dense.optimizer->state());
}

TEST_P(PackedState, HoldsOnlyWhatIsKept) {
  Training training(GetParam());
  const auto num_slots = static_cast<int64_t>(training.optimizer->slots_of(0).size());
  const int64_t num_elements = training.num_elements();
  training.step();
  EXPECT_EQ(training.optimizer->slot_bytes(), 4 * num_slots * (num_elements + 19));
  training.prune(0.1, true);
  const int64_t packed_bytes =
      4 * num_slots * (count_kept(training.bits.data(), num_elements) + 19);
  EXPECT_EQ(training.optimizer->slot_bytes(), packed_bytes);
  training.step();
  EXPECT_EQ(training.optimizer->slot_bytes(), packed_bytes);
  (void)training.optimizer->state();
  EXPECT_EQ(training.optimizer->slot_bytes(), 4 * num_slots * (num_elements + 19));
  training.step();
  EXPECT_EQ(training.optimizer->slot_bytes(), packed_bytes);
  training.prune(0.8, true);
  EXPECT_EQ(training.optimizer->slot_bytes(), 4 * num_slots * (num_elements + 19));
}

TEST_P(PackedState, ReadingItChangesNothing) {
  Training read(GetParam()), left_alone(GetParam());
  for (Training* one : {&read, &left_alone}) {
    one->prune(0.3, true);
    for (int i = 0; i < 3; ++i) {
      one->step();
      if (one != &read) continue;
      (void)one->optimizer->state();
      (void)one->optimizer->slots_of(2);
    }
  }
  for (size_t i = 0; i < read.params.size(); ++i)
    EXPECT_TRUE(at::equal(read.params[i].tensor, left_alone.params[i].tensor));
}

/// The masks are not known before a restore, as in a resumed run.
TEST_P(PackedState, GoesOnFromASave) {
  Training unbroken(GetParam()), resumed(GetParam());
  unbroken.prune(0.25, true);
  unbroken.steps(3);
  copy_state(unbroken.optimizer->state(), resumed.optimizer->state());
  copy_values(unbroken, &resumed);
  resumed.num_steps = unbroken.num_steps;
  resumed.prune(0.25, true);
  for (Training* one : {&unbroken, &resumed}) one->steps(3);
  for (size_t i = 0; i < unbroken.params.size(); ++i)
    EXPECT_TRUE(at::equal(unbroken.params[i].tensor, resumed.params[i].tensor));
}

TEST_P(PackedState, GoesOnFromASaveIntoPackedSlots) {
  Training unbroken(GetParam()), resumed(GetParam());
  for (Training* one : {&unbroken, &resumed}) one->prune(0.25, true);
  unbroken.steps(3);
  resumed.steps(2);  // another state, already packed
  copy_state(unbroken.optimizer->state(), resumed.optimizer->state());
  copy_values(unbroken, &resumed);
  resumed.num_steps = unbroken.num_steps;
  for (Training* one : {&unbroken, &resumed}) one->steps(3);
  for (size_t i = 0; i < unbroken.params.size(); ++i)
    EXPECT_TRUE(at::equal(unbroken.params[i].tensor, resumed.params[i].tensor));
}

TEST_P(PackedState, FollowsANewLayout) {
  Training moved(GetParam()), stayed(GetParam());
  for (Training* one : {&moved, &stayed}) {
    one->prune(0.25, true);
    one->steps(2);
  }
  for (const std::vector<bool>& trainable :
       {std::vector<bool>{true, true, false}, std::vector<bool>{true, true, true}}) {
    const BufferPlan plan = trainable[2] ? BufferPlan{{2, 0}, {1}} : BufferPlan{{0}, {2}, {1}};
    moved.optimizer->rebuild(moved.flat_params.flatten(plan, trainable));
  }
  moved.optimizer->set_kept(0, moved.bits);
  for (Training* one : {&moved, &stayed}) one->steps(2);
  expect_same_values(moved, stayed);
  expect_same_state(moved.optimizer->state(), stayed.optimizer->state());
}

/// Counts tensors' memory.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* wrapped) : wrapped_(wrapped) {}
  c10::DataPtr allocate(size_t num_bytes) override {
    ++num_allocations;
    return wrapped_->allocate(num_bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return wrapped_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }

  int64_t num_allocations = 0;

 private:
  c10::Allocator* wrapped_;
};

template <typename Act>
int64_t num_allocations_of(const Act& act) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  CountingAllocator counting(before);
  c10::SetCPUAllocator(&counting, 255);
  act();
  c10::SetCPUAllocator(before, 255);
  return counting.num_allocations;
}

TEST_P(PackedState, ASteadyStepAllocatesNoTensor) {
  Training training(GetParam());
  training.prune(0.2, true);
  training.step();
  EXPECT_EQ(num_allocations_of([&] { training.optimizer->step(training.rates); }), 0);
  EXPECT_GT(num_allocations_of([&] { (void)training.optimizer->state(); }), 0);
}

/// Memory that is expanded and freed again stays resident.
TEST_P(PackedState, AMaskThatKeepsAllMakesNothingWhole) {
  Training training(GetParam());
  training.optimizer->set_shards({{0, 5, 1000}, {1, 0, 19}});
  training.step();
  EXPECT_EQ(num_allocations_of([&] { training.optimizer->set_kept(0, {}); }), 0);
  training.prune(0.2, true);
  EXPECT_GT(num_allocations_of([&] { training.optimizer->set_kept(0, {}); }), 0);
}

}  // namespace packed_state_test
}  // namespace lockstep::optim
