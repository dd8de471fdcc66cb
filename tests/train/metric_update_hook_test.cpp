#include "train/evaluator.h"

#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "tests/train/small_run.h"

namespace lockstep::train {
namespace metric_update_hook_test {

/// The mean of all outputs.
EvalMetric mean_output() {
  return {.num_sums = 2,
          .sums =
              [](const coord::DataMap& data) {
                const at::Tensor& outputs_BO = data.tensor("logits");
                return at::tensor(
                    {outputs_BO.sum().item<double>(), static_cast<double>(outputs_BO.numel())});
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<EvalValue> {
            return {{"mean_output", sums_S[0] / sums_S[1]}};
          }};
}

/// Number of outputs: a second metric, whose sums follow those of the first one.
EvalMetric num_outputs() {
  return {.num_sums = 1,
          .sums =
              [](const coord::DataMap& data) {
                return at::full({1}, data.tensor("logits").numel(), at::kDouble);
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<EvalValue> {
            return {{"num_outputs", sums_S[0]}};
          }};
}

/// An iteration of these outputs.
void after(MetricUpdateHook* hook, const at::Tensor& outputs_BO) {
  StepTensors tensors;
  tensors.begin(at::zeros({outputs_BO.size(0), 3}), at::zeros({outputs_BO.size(0)}, at::kLong));
  tensors.add_outputs(outputs_BO);
  hook->after_step({.tensors = &tensors});
}

TEST(MetricUpdateHook, N49_sums_of_batches_are_joined_over_ranks_and_begin_anew) {
  for (const int world_size : {1, 2})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      tests::SmallRun run(comm, {});
      MetricUpdateHook hook({num_outputs(), mean_output()});
      EXPECT_TRUE(hook.reads_tensors());
      const HookContext context{.model = *run.model};
      for (const double offset : {0., 100.}) {  // the second evaluation knows nothing of the first
        hook.begin({.run = context, .mode = coord::Mode::kEval});
        after(&hook, at::full({2, 4}, offset + comm.rank()));
        after(&hook, at::full({1, 4}, offset + 3 + comm.rank()));
        const std::vector<EvalValue> found = hook.values(comm);
        ASSERT_EQ(found.size(), 2U);
        EXPECT_EQ(found[0].name, "num_outputs");
        EXPECT_EQ(found[0].value.item<double>(), 12 * world_size);
        EXPECT_EQ(found[1].name, "mean_output");
        EXPECT_DOUBLE_EQ(found[1].value.item<double>(), offset + (world_size == 1 ? 1 : 1.5));
      }
    });
}

TEST(MetricUpdateHook, Without_metrics_no_tensors_are_kept_and_nothing_is_sent) {
  dist::SelfCommunicator alone;
  MetricUpdateHook hook({});
  EXPECT_FALSE(hook.reads_tensors());
  EXPECT_TRUE(hook.values(alone).empty());
}

}  // namespace metric_update_hook_test
}  // namespace lockstep::train
