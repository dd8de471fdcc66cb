#pragma once

#include <functional>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "data/loader.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "optim/flat_params.h"
#include "train/eval_metrics.h"
#include "train/eval_options.h"
#include "train/hook.h"
#include "train/loss/loss.h"

/// Evaluation of a model on a data set: evaluation mode, loop and metrics.
namespace lockstep::train {

/// Switches a model from training to evaluation and back. Only this class decides which weights are
/// evaluated. (For inference, infer/exports/ builds another model from a checkpoint.)
class ModelHandler {
 public:
  /// Both must outlive the handler. `ema`: evaluate these averages of the weights; null, or an EMA
  /// that is off: the weights themselves.
  explicit ModelHandler(model::Model& model, optim::Ema* ema = nullptr)
      : model_(model), ema_(ema) {}

  /// Evaluation mode for its lifetime. The model's forward pass is that of evaluation
  /// (Model::set_training(false)), no gradients are recorded on this thread, and the weights are
  /// those to be evaluated. Plans must not overlap.
  class EvalPlan {
   public:
    explicit EvalPlan(const ModelHandler& handler);
    ~EvalPlan();
    EvalPlan(const EvalPlan&) = delete;
    EvalPlan& operator=(const EvalPlan&) = delete;

   private:
    model::Model& model_;
    const optim::EmaInModel averaged_;
    const at::NoGradGuard no_grad_;
    const bool was_training_;
  };
  [[nodiscard]] EvalPlan eval_plan() const { return EvalPlan(*this); }
  model::Model& model() const { return model_; }

 private:
  model::Model& model_;
  optim::Ema* ema_;
};

/// Updates the metrics of eval.metrics by batch, as sums that the ranks add at an evaluation's end.
class MetricUpdateHook final : public Hook {
 public:
  explicit MetricUpdateHook(EvalMetrics metrics) : metrics_(std::move(metrics)) {}

  bool reads_tensors() const override { return !metrics_.empty(); }
  void begin(const LoopStart&) override;
  void after_step(const IterationEnd& end) override;
  /// Returns the results over all ranks. Collective.
  std::vector<EvalValue> values(dist::Communicator& control);

 private:
  const EvalMetrics metrics_;
  std::vector<at::Tensor> sums_;  // by metric, float64
};

/// The step and the hooks of an evaluation.
struct EvalLoop {
  Hooks* hooks = nullptr;  ///< may be null
  int64_t step = 0;        ///< updates done
  /// True if this rank must stop; called every few batches. The ranks agree: if one must stop, all
  /// skip the rest after the same batch, and the evaluation is void. May be empty, on all ranks.
  std::function<bool()> must_stop = {};
  data::LoaderOptions loader = {};  ///< read-ahead threads; by default the caller reads
};

/// Evaluates the model (ModelHandler::eval_plan(), in float32) on the first num_eval_samples() of a
/// data set. Each rank evaluates a contiguous part; the result is the same on every rank.
/// Collective. If the network computes its own loss and gives no outputs with it, metrics and hooks
/// that read the outputs cost a second forward pass.
EvalResult evaluate(const ModelHandler& handler, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const EvalLoop& loop = {});

}  // namespace lockstep::train
