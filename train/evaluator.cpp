#include "train/evaluator.h"

#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "base/error.h"
#include "data/sampler.h"
#include "train/step/loss.h"

namespace lockstep::train {
namespace {

/// The model evaluates while it lives.
class Evaluating {
 public:
  explicit Evaluating(model::Model& model) : model_(model), was_training_(model.is_training()) {
    model_.set_training(false);
  }
  ~Evaluating() { model_.set_training(was_training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  model::Model& model_;
  const bool was_training_;
};

}  // namespace

EvalResult evaluate(model::Model& model, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const std::function<void()>& on_batch) {
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  const data::Shard mine =
      data::shard_of(dataset.num_samples(), control.rank(), control.world_size());
  double loss_sum = 0, correct = 0, num_seen = 0;  // damaged samples are left out
  const bool has_accuracy =
      !loss.is_own() && dataset.spec().target_kind != data::TargetKind::kValues;
  for (int64_t begin = mine.begin; begin < mine.end; begin += options.batch_size) {
    std::vector<int64_t> indices(
        static_cast<size_t>(std::min(options.batch_size, mine.end - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const data::Samples samples = dataset.get(indices, /*epoch=*/0);
    if (samples.targets_BY.size(0) == 0) continue;
    num_seen += static_cast<double>(samples.targets_BY.size(0));
    const at::Device device = model.params().at(0).tensor.device();
    const at::Tensor targets_BY = samples.targets_BY.to(device);
    const at::Tensor inputs_BX = samples.inputs_BX.to(device);
    if (loss.is_own()) {
      loss_sum += model.own_loss(inputs_BX, targets_BY).item<double>() *
                  static_cast<double>(inputs_BX.size(0));
    } else {
      const at::Tensor outputs_BO = model.forward(inputs_BX);
      loss_sum += loss.sum(outputs_BO, targets_BY).item<double>();
      correct += loss.num_correct(outputs_BO, targets_BY).value_or(0);
    }
    if (on_batch) on_batch();
  }
  at::Tensor sums_3 = at::tensor({loss_sum, correct, num_seen}, at::kDouble);
  control.all_reduce(sums_3, dist::ReduceOp::kSum)->wait();
  const auto num_samples = sums_3[2].item<double>();
  if (num_samples == 0)
    throw Error(ExitCode::kBadData, "eval", "every sample of data.eval is damaged").everywhere();
  EvalResult result{.loss = sums_3[0].item<double>() / num_samples,
                    .num_samples = static_cast<int64_t>(num_samples)};
  if (has_accuracy) result.accuracy = sums_3[1].item<double>() / num_samples;
  return result;
}

}  // namespace lockstep::train
