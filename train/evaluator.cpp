#include "train/evaluator.h"

#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/trace.h"
#include "coord/callback.h"
#include "data/sampler.h"
#include "train/step/training_pass.h"

// Evaluation mode, metrics and loop of an evaluation.
namespace lockstep::train {

ModelHandler::EvalPlan::EvalPlan(const ModelHandler& handler)
    : model_(handler.model_), averaged_(handler.ema_), was_training_(model_.is_training()) {
  // was_training_ is read before; averaged_ has already replaced the weights.
  model_.set_training(false);
}

ModelHandler::EvalPlan::~EvalPlan() { model_.set_training(was_training_); }

// Metrics are sums, so batches and ranks are added without storing outputs.

void MetricUpdateHook::begin(const LoopStart&) {
  sums_.clear();
  for (const EvalMetric& metric : metrics_)
    sums_.push_back(at::zeros({metric.num_sums}, at::kDouble));
}

void MetricUpdateHook::after_step(const IterationEnd& end) {
  if (metrics_.empty()) return;
  const coord::DataMap data = metric_data(end.tensors->outputs_BO(), end.tensors->targets_BY());
  for (size_t i = 0; i < metrics_.size(); ++i) sums_[i] += metrics_[i].sums(data).cpu();
}

std::vector<EvalValue> MetricUpdateHook::values(dist::Communicator& control) {
  std::vector<EvalValue> found;
  if (metrics_.empty()) return found;
  // One message for all metrics.
  at::Tensor all = at::cat(sums_);
  control.all_reduce(all, dist::ReduceOp::kSum)->wait();
  int64_t begin = 0;
  for (size_t i = 0; i < metrics_.size(); ++i) {
    const int64_t num_sums = sums_[i].numel();
    for (EvalValue& value : metrics_[i].values(all.narrow(0, begin, num_sums)))
      found.push_back(std::move(value));
    begin += num_sums;
  }
  return found;
}

// Each rank evaluates a contiguous part and adds up sums; one all_reduce at the end joins them. So
// the result does not depend on the world size, except for rounding.

namespace {

enum SumOf { kLoss, kCorrect, kCounted, kSamples, kNumSums };

// Batches between two votes, each of which costs a small message.
constexpr int64_t kBatchesAVote = 4;

/// Samples of one rank, numbered from 0.
class RankShare final : public data::Dataset {
 public:
  RankShare(const data::Dataset& all, data::Shard mine) : all_(all), mine_(mine) {}

  int64_t num_samples() const override { return mine_.size(); }
  data::SampleSpec spec() const override { return all_.spec(); }
  std::string digest() const override { return all_.digest(); }
  /// Returns no samples for a second epoch, which read-ahead threads begin needlessly.
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    if (epoch > 0) return data::no_samples(spec());
    std::vector<int64_t> places(indices_B.begin(), indices_B.end());
    for (int64_t& place : places) place += mine_.begin;
    return all_.get(places, epoch);
  }

 private:
  const data::Dataset& all_;
  const data::Shard mine_;
};

/// Batches of a rank's samples, in order.
class ShareReader {
 public:
  /// `mine` is not empty.
  ShareReader(const data::Dataset& all, data::Shard mine, int64_t batch_size,
              const data::LoaderOptions& options)
      : share_(all, mine),
        sampler_({.num_samples = mine.size(), .global_batch_size = batch_size, .shuffle = false}),
        loader_(share_, sampler_, /*rank=*/0, /*world_size=*/1, options) {}

  int64_t num_batches() const { return sampler_.steps_per_epoch(); }
  data::Samples next() { return loader_.next().samples; }

 private:
  const RankShare share_;
  data::Sampler sampler_;
  data::Loader loader_;
};

/// State of one evaluation on this rank.
class Evaluation {
 public:
  Evaluation(model::Model& model, const Loss& loss, EvalMetrics metrics, const EvalLoop& loop)
      : model_(model), loss_(loss), metric_update_(std::move(metrics)), loop_(loop) {
    keeps_tensors_ =
        metric_update_.reads_tensors() || (loop.hooks != nullptr && loop.hooks->read_tensors());
  }

  void begin(int64_t num_iterations, const HookContext& alone) {
    num_iterations_ = num_iterations;
    metric_update_.begin({.run = alone, .mode = coord::Mode::kEval});
    if (loop_.hooks != nullptr) loop_.hooks->begin(coord::Mode::kEval, loop_.step, num_iterations);
  }

  void before_batch() {
    if (loop_.hooks != nullptr) loop_.hooks->before_step(loop_.step);
  }

  void add_batch(const data::Samples& samples) {
    if (samples.targets_BY.size(0) == 0) return;  // all are damaged
    const summary::DefaultWriter writer(summaries());
    Stopwatch watch;
    const double num_counted = loss_.num_counted(samples.targets_BY);
    const double loss_sum = sum_of_losses(samples, num_counted);
    sums_4_[kLoss] += loss_sum;
    // Losses are divided by the targets that count, not by samples.
    sums_4_[kCounted] += num_counted;
    sums_4_[kSamples] += samples.targets_BY.size(0);
    const IterationEnd end{.iteration = iteration_++,
                           .step = loop_.step,
                           .loss = loss_sum / num_counted,
                           .network_s = watch.lap(),
                           .tensors = &tensors_};
    metric_update_.after_step(end);
    if (loop_.hooks != nullptr) loop_.hooks->after_step(end);
  }

  /// True if any rank must stop. Sends nothing if stops are not possible. Collective.
  bool all_stop(dist::Communicator& control) const {
    return loop_.must_stop && dist::any_of(control, loop_.must_stop());
  }

  /// Ends without a result; callbacks store what they have.
  EvalResult abandoned() {
    if (loop_.hooks != nullptr) loop_.hooks->break_off();
    return {.is_abandoned = true};
  }

  /// Returns the result over all ranks. Collective.
  EvalResult result(dist::Communicator& control, bool has_accuracy) {
    control.all_reduce(sums_4_, dist::ReduceOp::kSum)->wait();
    const auto num_samples = sums_4_[kSamples].item<double>();
    const auto num_counted = sums_4_[kCounted].item<double>();
    // All ranks have the same sums, so all throw.
    if (num_samples == 0)
      throw Error(ExitCode::kBadData, "eval", "every sample of data.eval is damaged").everywhere();
    if (num_counted == 0)
      throw Error(ExitCode::kBadData, "eval",
                  fmt::format("every target of data.eval is ignored ({})", data::kIgnoredTarget))
          .everywhere();
    EvalResult result{.loss = sums_4_[kLoss].item<double>() / num_counted,
                      .num_samples = static_cast<int64_t>(num_samples)};
    if (has_accuracy) result.accuracy = sums_4_[kCorrect].item<double>() / num_counted;
    result.metrics = metric_update_.values(control);
    if (loop_.hooks == nullptr) return result;
    loop_.hooks->end();
    loop_.hooks->complete(&result);
    return result;
  }

 private:
  summary::DefaultWriterOptions summaries() const {
    if (loop_.hooks == nullptr) return {};
    return loop_.hooks->summaries_at(
        coord::SummaryClock::eval_step(loop_.step, num_iterations_, iteration_));
  }

  double sum_of_losses(const data::Samples& on_host, double num_counted) {
    const at::Device device = model_.params().at(0).tensor.device();
    const data::Samples samples =
        data::mapped(on_host, [&](const at::Tensor& values) { return values.to(device); });
    model::OwnLoss own;
    if (loss_.is_own()) own = model_.own_loss(data::arguments_of(samples, /*with_targets=*/true));
    at::Tensor outputs_BO = own.outputs_BO;
    if (!loss_.is_own() || (keeps_tensors_ && !outputs_BO.defined()))
      outputs_BO = model_.forward_of(data::arguments_of(samples, /*with_targets=*/false));
    if (outputs_BO.defined()) outputs_BO = outputs_BO.to(at::kFloat);
    if (keeps_tensors_) {
      tensors_.begin(samples.inputs_BX, samples.targets_BY);
      tensors_.add_outputs(outputs_BO);
    }
    if (loss_.is_own())  // a mean over no target is NaN
      return num_counted > 0 ? own.loss.item<double>() * num_counted : 0;
    sums_4_[kCorrect] += loss_.num_correct(outputs_BO, samples.targets_BY).value_or(0);
    return loss_.sum(outputs_BO, samples.targets_BY).item<double>();
  }

  model::Model& model_;
  const Loss& loss_;
  MetricUpdateHook metric_update_;
  const EvalLoop& loop_;
  bool keeps_tensors_ = false;
  StepTensors tensors_;
  int64_t iteration_ = 0, num_iterations_ = 0;
  at::Tensor sums_4_ = at::zeros({kNumSums}, at::kDouble);
};

}  // namespace

EvalResult evaluate(const ModelHandler& handler, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control, const EvalLoop& loop) {
  const trace::Span span("evaluation");
  Stopwatch watch;
  const ModelHandler::EvalPlan plan = handler.eval_plan();
  Evaluation evaluation(handler.model(), loss,
                        make_eval_metrics(options, dataset.spec(), !loss.is_own()), loop);
  const int64_t num_samples = num_eval_samples(options, dataset.num_samples());
  const data::Shard mine = data::shard_of(num_samples, control.rank(), control.world_size());
  std::optional<ShareReader> reader;
  if (mine.size() > 0) reader.emplace(dataset, mine, options.batch_size, loop.loader);
  const int64_t num_batches = reader ? reader->num_batches() : 0;
  const int64_t least_share = num_samples / control.world_size();
  evaluation.begin(num_batches, {.model = handler.model()});
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    // Ranks may have one batch more than others, so only batches that all have are voted on.
    const bool votes = batch * options.batch_size < least_share && batch % kBatchesAVote == 0;
    if (votes && evaluation.all_stop(control)) return evaluation.abandoned();
    evaluation.before_batch();
    evaluation.add_batch(reader->next());
  }
  const bool has_accuracy =
      !loss.is_own() && dataset.spec().target_kind != data::TargetKind::kValues;
  EvalResult result = evaluation.result(control, has_accuracy);
  result.seconds = watch.lap();
  return result;
}

}  // namespace lockstep::train
