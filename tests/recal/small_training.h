#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "dist/communicator.h"
#include "recal/scheduled_modifier_manager.h"
#include "recipes.h"

namespace lockstep::recal {

constexpr int64_t kStepsPerEpoch = 4;

/// Prunes over epochs 1 to 4 (steps 4 to 16), 24 steps in all; two rates.
inline std::string short_run() {
  return recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 6}",
                    "!LearningRateModifier {start_epoch: 0, end_epoch: 6, lr_class: MultiStepLR, "
                    "lr_kwargs: {gamma: 0.5, milestones: [2.5]}}",
                    "!GradualKSModifier {params: [a], init_sparsity: 0.1, final_sparsity: 0.8, "
                    "start_epoch: 1, end_epoch: 4, update_frequency: 0.75}"});
}

inline at::Tensor random_values(int64_t seed, at::IntArrayRef sizes) {
  const CounterRandom random{seed};
  const at::Tensor values = at::empty(sizes);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] =
        static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
  return values;
}

inline Param param(const std::string& name, const at::Tensor& values, bool prunable) {
  at::Tensor leaf = values.clone();
  leaf.requires_grad_(true);
  return {name, leaf, prunable, prunable};
}

/// One rank of a small training: weights are pushed about by numbers that depend on step and index
/// only.
struct Training {
  explicit Training(const std::string& recipe, bool updates_keep_zeros = false)
      : params{param("a.weight", random_values(1, {10, 10}), true),
               param("a.bias", random_values(2, {10}), false),
               param("b.weight", random_values(3, {20, 5}), true)},
        manager(good_recipe(recipe)) {
    Diagnostics faults;
    manager.attach(params,
                   {.steps_per_epoch = kStepsPerEpoch,
                    .base_learning_rate = 0.1,
                    .updates_keep_zeros = updates_keep_zeros},
                   &faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
  }

  void step(dist::Communicator& comm) {
    last = manager.apply_due(now, comm);
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor push =
          random_values(100 * now + static_cast<int64_t>(i), params[i].tensor.sizes());
      params[i].tensor.detach().sub_(push, manager.learning_rate_at(now));
    }
    manager.end_step(true, comm);
    ++now;
  }
  void go_on_until(int64_t end, dist::Communicator& comm) {
    while (now < end) step(comm);
  }
  int64_t num_zeros(size_t index) const {
    return params[index].tensor.numel() - params[index].tensor.count_nonzero().item<int64_t>();
  }

  ParamTable params;
  ScheduledModifierManager manager;
  int64_t now = 0;
  AppliedActions last;
};

/// Copies what a checkpoint holds: weights and listed state.
inline void copy_state(Training* from, Training* to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from->params.size(); ++i)
    to->params[i].tensor.copy_(from->params[i].tensor);
  const StateList source = from->manager.state();
  const StateList target = to->manager.state();
  ASSERT_EQ(source.size(), target.size());
  for (size_t i = 0; i < source.size(); ++i) target[i].tensor.copy_(source[i].tensor);
  to->now = from->now;
}

inline void expect_same(const Training& a, const Training& b) {
  for (size_t i = 0; i < a.params.size(); ++i)
    EXPECT_TRUE(at::equal(a.params[i].tensor, b.params[i].tensor)) << a.params[i].name;
  for (size_t i = 0; i < a.manager.masks().all().size(); ++i)
    EXPECT_TRUE(
        at::equal(a.manager.masks().all()[i].kept_bits, b.manager.masks().all()[i].kept_bits));
}

}  // namespace lockstep::recal
