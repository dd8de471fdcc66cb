#include "train/evaluator.h"

#include <cmath>
#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "data/sampler.h"
#include "train/step/stopwatch.h"

namespace lockstep::train {
namespace {

/// Sums over samples, which ranks add to one another.
struct Sums {
  explicit Sums(const EvalMetrics& metrics) {
    for (const auto& metric : metrics)
      of_metrics.push_back(at::zeros({metric->num_sums()}, at::kDouble));
  }

  void add_over_ranks(dist::Communicator& control) {
    std::vector<at::Tensor> parts = of_metrics;
    parts.push_back(own_3);
    at::Tensor all = at::cat(parts);
    control.all_reduce(all, dist::ReduceOp::kSum)->wait();
    int64_t begin = 0;
    for (at::Tensor& sums : of_metrics) {
      sums = all.narrow(0, begin, sums.numel());
      begin += sums.numel();
    }
    own_3 = all.narrow(0, begin, 3);
  }

  at::Tensor own_3 = at::zeros({3}, at::kDouble);  ///< loss, samples that are right, samples
  std::vector<at::Tensor> of_metrics;
};

/// Adds what the model gives for one batch.
void add_batch(const data::Samples& samples, model::Model& model, const Loss& loss,
               const EvalMetrics& metrics, Sums* sums) {
  const at::Device device = model.params().at(0).tensor.device();
  const at::Tensor targets_BY = samples.targets_BY.to(device);
  const at::Tensor inputs_BX = samples.inputs_BX.to(device);
  at::Tensor outputs_BO;
  if (!loss.is_own() || !metrics.empty()) outputs_BO = model.forward(inputs_BX).to(at::kFloat);
  if (loss.is_own()) {
    sums->own_3[0] += model.own_loss(inputs_BX, targets_BY).item<double>() *
                      static_cast<double>(inputs_BX.size(0));
  } else {
    sums->own_3[0] += loss.sum(outputs_BO, targets_BY).item<double>();
    sums->own_3[1] += loss.num_correct(outputs_BO, targets_BY).value_or(0);
  }
  sums->own_3[2] += samples.targets_BY.size(0);  // damaged ones are left out
  for (size_t i = 0; i < metrics.size(); ++i)
    sums->of_metrics[i] += metrics[i]->sums(outputs_BO, targets_BY).cpu();
}

}  // namespace

double number_of(const EvalResult& result, const std::string& metric) {
  return metric == "eval.loss" ? result.loss : result.accuracy.value_or(NAN);
}

EvalResult evaluate(const ModelHandler& handler, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const std::function<void()>& on_batch) {
  Stopwatch watch;
  const ModelHandler::EvalPlan plan = handler.eval_plan();
  const EvalMetrics metrics = make_eval_metrics(options, dataset.spec(), !loss.is_own());
  Sums sums(metrics);
  const data::Shard mine = data::shard_of(num_eval_samples(options, dataset.num_samples()),
                                          control.rank(), control.world_size());
  for (int64_t begin = mine.begin; begin < mine.end; begin += options.batch_size) {
    std::vector<int64_t> indices(
        static_cast<size_t>(std::min(options.batch_size, mine.end - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const data::Samples samples = dataset.get(indices, /*epoch=*/0);
    if (samples.targets_BY.size(0) > 0) add_batch(samples, handler.model(), loss, metrics, &sums);
    if (on_batch) on_batch();
  }
  sums.add_over_ranks(control);
  const auto num_samples = sums.own_3[2].item<double>();
  if (num_samples == 0)
    throw Error(ExitCode::kBadData, "eval", "every sample of data.eval is damaged").everywhere();
  EvalResult result{.loss = sums.own_3[0].item<double>() / num_samples,
                    .num_samples = static_cast<int64_t>(num_samples)};
  if (!loss.is_own() && dataset.spec().target_kind != data::TargetKind::kValues)
    result.accuracy = sums.own_3[1].item<double>() / num_samples;
  for (size_t i = 0; i < metrics.size(); ++i)
    for (EvalValue& value : metrics[i]->values(sums.of_metrics[i]))
      result.metrics.push_back(std::move(value));
  result.seconds = watch.lap();
  return result;
}

}  // namespace lockstep::train
