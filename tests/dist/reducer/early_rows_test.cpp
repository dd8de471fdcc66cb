#include <chrono>
#include <functional>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/custom_function.h>

#include "dist/reducer/gradient_reducer.h"
#include "dist/reducer/overlap.h"
#include "tests/dist/reducer/flat_model.h"
#include "tests/dist/spy_communicator.h"
#include "tests/support/patience.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace early_rows_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tests::FlatModel;
using tests::SpyCommunicator;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidth = 12, kRowsAPiece = 3;
constexpr int64_t kLast = 3;  // the layer whose gradient comes first

/// Callback of a layer that writes row by row, called after each row.
using AfterRow = std::function<void(int64_t row)>;

/// inputs_BI, weight_OI -> [B, O]; backward adds the weight's gradient in place, row by row.
struct ByRows : torch::autograd::Function<ByRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BI,
                            const at::Tensor& weight_OI, GradInPlace* in_place,
                            const AfterRow* after_row) {
    context->save_for_backward({inputs_BI, weight_OI});
    context->saved_data["in_place"] = reinterpret_cast<int64_t>(in_place);
    context->saved_data["after_row"] = reinterpret_cast<int64_t>(after_row);
    return inputs_BI.mm(weight_OI.t());
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const at::NoGradGuard no_grad;
    const variable_list saved = context->get_saved_variables();
    const auto* in_place = pointer<GradInPlace>(context, "in_place");
    const auto& after_row = *pointer<AfterRow>(context, "after_row");
    for (int64_t row = 0; row < kWidth; ++row) {
      saved[1].grad()[row].add_(outputs[0].narrow(1, row, 1).t().mm(saved[0])[0]);
      if (in_place->on_written) in_place->on_written((row + 1) * kWidth);
      after_row(row);
    }
    return {outputs[0].mm(saved[1]), at::Tensor(), {}, {}};
  }
  template <typename T>
  static T* pointer(AutogradContext* context, const char* name) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an IValue holds integers, no plain pointers
    return reinterpret_cast<T*>(context->saved_data[name].toInt());
  }
};

at::Tensor some_inputs(int rank) {
  return at::cos(at::arange(2 * kWidth, at::kFloat) + rank).view({2, kWidth});
}

/// Other uses of the last layer's weight, in addition to the layer's product.
enum class Also { kNothing, kUsedTwice, kInTheLoss, kViewInTheLoss };

at::Tensor loss_of(const FlatModel& model, int rank, Also also, const AfterRow& after_row) {
  const at::Tensor& weight = model.weight(kLast);
  at::Tensor x = some_inputs(rank);
  for (int64_t layer = 0; layer < kLast; ++layer)
    x = at::tanh(at::linear(x, model.weight(layer), model.bias(layer)));
  if (also == Also::kUsedTwice) x = at::tanh(at::linear(x, weight));
  x = ByRows::apply(x, weight, model.params[2 * kLast].grad_in_place.get(), &after_row);
  at::Tensor loss = (x + model.bias(kLast)).square().sum();
  if (also == Also::kInTheLoss) loss = loss + weight.square().sum();
  if (also == Also::kViewInTheLoss) loss = loss + weight[0].square().sum();
  return loss;
}

struct Step {
  FlatModel model;
  Step() { model.params[2 * kLast].grad_in_place = std::make_shared<GradInPlace>(); }
};

SyncOptions in_pieces(const char* overlap) {
  return {
      .bucket_bytes = kRowsAPiece * kWidth * 4, .overlap = overlap, .sparse_allreduce = "never"};
}

at::Tensor grads_without_overlap(Communicator& comm, Also also) {
  Step step;
  GradientReducer reducer(comm, step.model.buffers, step.model.params, in_pieces("false"));
  reducer.prepare_for_backward();
  loss_of(step.model, comm.rank(), also, [](int64_t) {}).backward();
  reducer.finish({.loss_sum = 1, .num_samples = 2});
  return step.model.all_grads();
}

TEST(EarlyRows, LeaveWhileTheirLayerComputesOthers) {
  tests::run_ranks(2, [](Communicator& comm) {
    const at::Tensor expected = grads_without_overlap(comm, Also::kNothing);
    SpyCommunicator spy(comm);
    Step step;
    GradientReducer reducer(spy, step.model.buffers, step.model.params, in_pieces("true"));
    reducer.prepare_for_backward();
    const AfterRow after_row = [&](int64_t row) {
      const auto num_pieces = static_cast<int>((row + 1) / kRowsAPiece);
      EXPECT_TRUE(tests::comes_true([&] { return spy.num_reductions == num_pieces; })) << row;
    };
    const at::Tensor loss = loss_of(step.model, comm.rank(), Also::kNothing, after_row);
    reducer.follow_graph(loss);
    loss.backward();
    reducer.finish({.loss_sum = 1, .num_samples = 2});
    EXPECT_TRUE(step.model.all_grads().equal(expected));
  });
}

class SomethingElse : public ::testing::TestWithParam<Also> {};

/// A row sent before the other part is added would be wrong on every rank, without an error.
TEST_P(SomethingElse, AddsToTheGradientSoThatNoRowLeavesBefore) {
  tests::run_ranks(2, [](Communicator& comm) {
    const at::Tensor expected = grads_without_overlap(comm, GetParam());
    SpyCommunicator spy(comm);
    Step step;
    GradientReducer reducer(spy, step.model.buffers, step.model.params, in_pieces("true"));
    reducer.prepare_for_backward();
    const AfterRow after_row = [&](int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_EQ(spy.num_reductions, 0);
    };
    const at::Tensor loss = loss_of(step.model, comm.rank(), GetParam(), after_row);
    reducer.follow_graph(loss);
    loss.backward();
    reducer.finish({.loss_sum = 1, .num_samples = 2});
    EXPECT_TRUE(step.model.all_grads().equal(expected));
  });
}

INSTANTIATE_TEST_SUITE_P(Weights, SomethingElse,
                         ::testing::Values(Also::kUsedTwice, Also::kInTheLoss,
                                           Also::kViewInTheLoss));

/// The second step's graph is another one, of which the reducer is not told; its first micro-batch
/// comes before the reducer is asked to send.
TEST(EarlyRows, AreOfTheStepInWhichAGraphWasFollowed) {
  tests::run_ranks(2, [](Communicator& comm) {
    SpyCommunicator spy(comm);
    Step step;
    GradientReducer reducer(spy, step.model.buffers, step.model.params, in_pieces("true"));
    reducer.prepare_for_backward();
    const AfterRow nothing = [](int64_t) {};
    at::Tensor loss = loss_of(step.model, comm.rank(), Also::kNothing, nothing);
    reducer.follow_graph(loss);
    loss.backward();
    reducer.finish({.loss_sum = 1, .num_samples = 2});

    const int num_before = spy.num_reductions;
    const AfterRow after_row = [&](int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_EQ(spy.num_reductions, num_before);
    };
    step.model.zero_grads();
    loss_of(step.model, comm.rank(), Also::kNothing, after_row).backward();
    step.model.zero_grads();
    reducer.prepare_for_backward();
    loss_of(step.model, comm.rank(), Also::kUsedTwice, after_row).backward();
    reducer.finish({.loss_sum = 1, .num_samples = 2});
    EXPECT_TRUE(step.model.all_grads().equal(grads_without_overlap(comm, Also::kUsedTwice)));
  });
}

TEST(EarlyRows, NobodyIsToldOnceTheReducerIsGone) {
  tests::run_ranks(1, [](Communicator& comm) {
    Step step;
    const AfterRow nothing = [](int64_t) {};
    {
      GradientReducer reducer(comm, step.model.buffers, step.model.params, in_pieces("true"));
      reducer.prepare_for_backward();
      reducer.follow_graph(loss_of(step.model, 0, Also::kNothing, nothing));
      EXPECT_TRUE(step.model.params[2 * kLast].grad_in_place->on_written);
    }
    EXPECT_FALSE(step.model.params[2 * kLast].grad_in_place->on_written);
  });
}

TEST(GradientHooks, SourcesAreCountedInTheGraph) {
  Step step;
  const GradientHooks hooks(step.model.params, [](int64_t) {});
  const AfterRow nothing = [](int64_t) {};
  const auto found = [&](Also also) {
    return hooks.with_one_source(loss_of(step.model, 0, also, nothing));
  };
  EXPECT_THAT(found(Also::kNothing), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(found(Also::kUsedTwice), ElementsAre(0, 1, 2, 3, 4, 5, 7));
  EXPECT_THAT(found(Also::kInTheLoss), ElementsAre(0, 1, 2, 3, 4, 5, 7));
  EXPECT_THAT(hooks.with_one_source(at::ones({})), IsEmpty()) << "a graph of backward's own";
}

}  // namespace early_rows_test
}  // namespace lockstep::dist
