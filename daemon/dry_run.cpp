#include "daemon/dry_run.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/restore/latest_checkpoint.h"
#include "daemon/publish/saved_models.h"
#include "daemon/run/run_hooks.h"
#include "daemon/run/warm_start.h"
#include "metrics/http/http_server.h"
#include "train/evaluation/eval_options.h"
#include "train/step/moved_buffers.h"
#include "train/sync/share_weights.h"

namespace lockstep::daemon {
namespace {

constexpr int64_t kTriedSamples = 2;

/// Collects the faults of several checks into one error, with the first one's exit code.
class Faults {
 public:
  template <typename Check>
  void add_from(const Check& check) {
    try {
      check();
    } catch (const Error& fault) {
      if (all_)
        all_->append(fmt::format("\n{}", fault.what()));
      else
        all_ = fault;
    }
  }
  void throw_if_any() const {
    if (all_) throw Error(*all_);
  }

 private:
  std::optional<Error> all_;
};

/// Returns the first samples of a data set, at most `count`.
data::Samples first_samples(const data::Dataset& dataset, int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(std::min(count, dataset.num_samples())));
  std::iota(indices.begin(), indices.end(), 0);
  return dataset.get(indices, /*epoch=*/0);
}

/// Computes the loss of some samples as a training step does, but in float32 on the CPU.
void try_forward(TrainingContext& context, int64_t num_samples) {
  const data::Samples samples = first_samples(*context.train_data, num_samples);
  if (samples.targets_BY.size(0) == 0) return;  // all samples are damaged and skipped
  model::Model& model = *context.model;
  model.set_training(true);
  model.begin_forward({});
  if (context.loss.is_own()) {
    (void)model.own_loss(samples.inputs_BX, samples.targets_BY);
    return;
  }
  (void)context.loss.sum(model.forward(samples.inputs_BX), samples.targets_BY);
}

/// Runs an evaluation of some samples. Layers of PyTorch may behave differently in it.
void try_evaluation(TrainingContext& context) {
  if (!context.eval_data) return;
  const data::Samples samples = first_samples(*context.eval_data, kTriedSamples);
  if (samples.targets_BY.size(0) == 0) return;
  model::Model& model = *context.model;
  const bool is_own = context.loss.is_own();
  const train::EvalMetrics metrics =
      train::make_eval_metrics(context.config.eval, context.eval_data->spec(), !is_own);
  const std::unique_ptr<train::Hook> callbacks = callback_hook(coord::Mode::kEval, context);
  model.set_training(false);
  const at::NoGradGuard no_grad;
  at::Tensor outputs_BO;
  // As in evaluate(): outputs are computed only if something reads them.
  if (!is_own || !metrics.empty() || (callbacks && callbacks->reads_tensors()))
    outputs_BO = model.forward(samples.inputs_BX).to(at::kFloat);
  if (is_own) {
    (void)model.own_loss(samples.inputs_BX, samples.targets_BY);
  } else {
    (void)context.loss.num_correct(outputs_BO, samples.targets_BY);
    (void)context.loss.sum(outputs_BO, samples.targets_BY);
  }
  for (const auto& metric : metrics) (void)metric->sums(outputs_BO, samples.targets_BY);
}

/// Runs a step, including its checks of buffers that the network's own code changes.
void try_step(TrainingContext& context) {
  train::MovedBuffers moved(*context.model, context.control, context.config.train.batch_norm,
                            context.config.run.is_elastic());
  moved.begin_step();
  try_forward(context, kTriedSamples);
  moved.end_step(/*updated=*/true, kTriedSamples);
  (void)context.model->buffers();  // a user's network reports its own faults here
}

/// Runs a batch of one sample, if such a batch will occur.
void try_single_sample(TrainingContext& context, int64_t world_size) {
  const std::string batch = context.batch_with_single_sample(world_size);
  if (batch.empty()) return;
  try {
    try_forward(context, 1);
  } catch (Error& fault) {
    fault.append(" (" + batch + ")");
    throw;
  }
}

/// Checks that ranks on one host can share one copy of the weights.
void try_to_share(TrainingContext& context, int64_t world_size) {
  if (world_size == 1) return;
  const dist::ProcessInfo process{};
  train::require_sharable({context.config.sync, *context.model, context.flat_params, context.recipe,
                           context.control, context.gradients, process,
                           /*has_users_hooks=*/!context.config.hooks.empty(),
                           /*may_write_weights=*/!context.repeats_itself()});
}

/// Checks the files that rank 0's pages need.
void try_pages(const RunConfig& config, int64_t world_size) {
  const auto listen = config.metrics.listen_for(0, 0, static_cast<int>(world_size));
  if (listen) metrics::check_http_options({.listen = *listen, .access = config.metrics.access});
}

/// Checks the warm start. An existing checkpoint of the run takes precedence, as in the run.
void try_warm_start(TrainingContext& context) {
  const std::filesystem::path saves = context.config.run.project().checkpoints();
  const bool is_resumed =
      context.config.checkpoint.enabled && checkpoint::latest_checkpoint(saves).has_value();
  warm_start(context, is_resumed);
}

}  // namespace

void dry_run(TrainingContext& context) {
  const RunConfig& config = context.config;
  const int64_t world_size = config.run.expect_world_size.value_or(1);
  Faults faults;
  faults.add_from([&] { try_to_share(context, world_size); });
  faults.add_from([&] { require_publishable(*context.model, config.publish); });
  faults.add_from([&] { try_warm_start(context); });
  faults.add_from([&] { try_pages(config, world_size); });
  faults.add_from([&] {
    if (context.eval_data) (void)first_samples(*context.eval_data, kTriedSamples);
  });
  faults.add_from([&] {
    if (config.run.device == "cuda") return;  // the network's code may need the GPU
    try_step(context);
    try_single_sample(context, world_size);
    try_evaluation(context);
  });
  faults.throw_if_any();
}

}  // namespace lockstep::daemon
