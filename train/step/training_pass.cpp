// Forward, loss and backward, computed or replayed from a recording. Everything before the
// reduction of gradients happens here.
#include "train/step/training_pass.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/tensors/tensor_memory.h"
#include "base/trace.h"
#include "data/sampler.h"
#include "train/loss/teacher.h"

namespace lockstep::train {

void StepTensors::begin(const at::Tensor& inputs_BX, const at::Tensor& targets_BY) {
  inputs_BX_ = inputs_BX;
  targets_BY_ = targets_BY;
  outputs_.clear();
}

void StepTensors::add_outputs(const at::Tensor& outputs_BO) {
  if (!outputs_BO.defined()) return;
  last_outputs_ = outputs_BO.detach().to(at::kFloat);
  outputs_.push_back(last_outputs_);
}

at::Tensor StepTensors::outputs_BO() const {
  if (outputs_.size() > 1) return at::cat(outputs_);
  if (!outputs_.empty()) return outputs_.front();
  // No samples: an empty tensor of the shape that outputs had before.
  if (inputs_BX_.size(0) > 0) return {};
  return last_outputs_.defined() ? last_outputs_.narrow(0, 0, 0)
                                 : at::empty({0, num_outputs_}, at::TensorOptions(at::kFloat));
}

Autocast::Autocast(const std::string& precision, at::Device device)
    : is_on_(precision != "fp32"), device_type_(device.type()) {
  if (!is_on_) return;
  check(precision == "bf16" || precision == "fp16", "precision: fp32, bf16 or fp16");
  was_enabled_ = at::autocast::is_autocast_enabled(device_type_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_type_);
  at::autocast::set_autocast_dtype(device_type_, precision == "bf16" ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(device_type_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!is_on_) return;
  // The cache holds converted copies of the weights, which will change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, was_enabled_);
  at::autocast::set_autocast_dtype(device_type_, dtype_before_);
}

// reached_ is atomic, since several autograd threads may set flags at the same time.

namespace {

const ParamTable& watched(const model::Model& model) {
  static const ParamTable none;
  return model.runs_user_code() ? model.params() : none;
}

}  // namespace

ParamsWatch::ParamsWatch(const model::Model& model)
    : params_(watched(model)),
      reached_(std::make_unique<std::atomic<bool>[]>(params_.size())),
      was_named_(params_.size(), false) {
  set_hooks();
}

void ParamsWatch::set_hooks() {
  // Old hooks first: a parameter must not have two.
  hooks_.reset();
  hooks_ = std::make_unique<dist::GradientHooks>(
      params_, [this](int64_t param) { reached_[static_cast<size_t>(param)] = true; });
}

void ParamsWatch::on_recipe_change(const recal::AppliedActions& due) {
  if (due.trainable) set_hooks();
}

void ParamsWatch::begin_step() {
  // Untrained parameters count as reached, so that only trained ones can be missing.
  for (size_t i = 0; i < params_.size(); ++i) reached_[i] = !params_[i].tensor.requires_grad();
}

void ParamsWatch::take_all_as_reached() {
  for (size_t i = 0; i < params_.size(); ++i) reached_[i] = true;
}

void ParamsWatch::before_forward() {
  versions_.clear();
  // Every in-place operation raises a tensor's version.
  for (const Param& param : params_) versions_.push_back(param.tensor._version());
}

void ParamsWatch::after_forward() {
  for (size_t i = 0; i < params_.size() && !written_; ++i)
    if (params_[i].tensor._version() != versions_[i]) written_ = i;
}

std::vector<double> ParamsWatch::counts() const {
  if (!is_on()) return {};
  double num_missing = 0;
  for (size_t i = 0; i < params_.size(); ++i) num_missing += reached_[i] ? 0 : 1;
  return {num_missing, written_ && !is_noted_ ? 1.0 : 0.0};
}

at::Tensor ParamsWatch::reached_P() const {
  const at::Tensor reached_P = at::ones({static_cast<int64_t>(params_.size())}, at::kLong);
  for (size_t i = 0; i < params_.size(); ++i)
    if (!reached_[i]) reached_P.mutable_data_ptr<int64_t>()[i] = 0;
  return reached_P;
}

std::string ParamsWatch::note_write() {
  is_noted_ = true;
  return written_ ? params_[*written_].name : "";
}

std::vector<std::string> ParamsWatch::new_names(const std::vector<int64_t>& params) {
  std::vector<std::string> names;
  for (const int64_t param : params) {
    const auto i = static_cast<size_t>(param);
    if (!was_named_[i]) names.push_back(params_[i].name);
    was_named_[i] = true;
  }
  return names;
}

static void add(const at::Tensor& loss, HostWaits waits, LossSum* sum) {
  if (waits == HostWaits::kForLosses)
    sum->on_host += loss.item<double>();
  else
    sum->on_device =
        sum->on_device.defined() ? sum->on_device + loss.detach() : loss.detach().to(at::kDouble);
}

TrainingPass::TrainingPass(const TrainerParts& parts, const TrainOptions& options,
                           BatchStatistics& statistics, ParamsWatch& watch)
    : parts_(parts),
      statistics_(statistics),
      watch_(watch),
      precision_(options.precision),
      num_micro_batches_(options.replicas_to_aggregate),
      recorded_pass_(*this, parts.graph) {}

LossSum TrainingPass::run(const data::Samples& samples, int64_t first_sample,
                          const PassRequest& request) {
  if (request.completes && recorded_pass_.is_on()) {
    Stopwatch watch;
    const std::optional<LossSum> loss = recorded_pass_.run(samples, request);
    request.phases->backward += watch.lap();
    if (loss) return *loss;
  }
  const at::Device device = parts_.flat_params.device();
  const auto to_its_device = [&](const at::Tensor& values) { return to_device(values, device); };
  return compute({.samples = data::mapped(samples, to_its_device),
                  .host_targets_BY = samples.targets_BY,
                  .first_sample = first_sample,
                  .weight = at::full({}, request.weight, at::TensorOptions(device))},
                 request, parts_.runs_ahead() ? HostWaits::kForPeers : HostWaits::kForLosses);
}

LossSum TrainingPass::compute(const PassInputs& inputs, const PassRequest& request,
                              HostWaits waits) {
  parts_.flat_params.zero_grads();
  LossSum loss_sum;
  const int64_t num_parts = num_micro_batches_;
  for (int64_t part = 0; part < num_parts; ++part) {
    const bool is_last =
        request.completes && part + 1 == num_parts;  // its gradients complete the update
    const data::Shard share = data::shard_of(inputs.samples.targets_BY.size(0), part, num_parts);
    const double num_counted =
        parts_.loss.is_own()
            ? parts_.loss.num_counted(inputs.host_targets_BY.narrow(0, share.begin, share.size()))
            : 1;
    // Without samples a rank skips the pass, unless other ranks wait for its sums in forward. The
    // network's own mean over no target would be NaN.
    if (num_counted == 0 || (share.size() == 0 && !statistics_.needs_every_rank())) {
      if (is_last) parts_.reducer.prepare_for_backward(*request.completes);
      continue;
    }
    Stopwatch watch;
    const at::Tensor loss = sum_of_losses(data::part_of(inputs.samples, share.begin, share.size()),
                                          num_counted, inputs.first_sample + share.begin);
    request.phases->forward += watch.lap();
    if (is_last) parts_.reducer.prepare_for_backward(*request.completes);
    if (waits != HostWaits::kForNothing) parts_.reducer.settle();
    request.phases->allreduce += watch.lap();
    backward(loss, inputs.weight);
    add(loss, waits, &loss_sum);
    request.phases->backward += watch.lap();
  }
  // After all micro-batches: gradients that no layer wrote are still marked as stale.
  parts_.flat_params.zero_unwritten_grads();
  if (parts_.model.runs_user_code()) parts_.flat_params.require_views();
  return loss_sum;
}

void TrainingPass::backward(const at::Tensor& loss, const at::Tensor& weight) {
  const trace::Span span("backward");
  // A branch may leave out all trained parameters: backward then reaches nothing.
  if (!loss.requires_grad() && parts_.model.runs_user_code()) return parts_.model.after_backward();
  // Before backward: it tells which gradients have a single source and may leave early.
  parts_.reducer.follow_graph(loss);
  try {
    loss.backward(weight);
  } catch (const std::exception&) {
    parts_.model.after_backward();  // throws the network's own error if its code raised one
    throw;
  }
  parts_.model.after_backward();
}

at::Tensor TrainingPass::sum_of_losses(const data::Samples& samples, double num_counted,
                                       int64_t first_sample) {
  const trace::Span span("forward");
  std::optional<recal::Distillation> distilled;
  at::Tensor teacher_BO;
  if (parts_.teacher != nullptr)
    distilled = parts_.recipe.timeline().distillation_at(parts_.clock.step);
  if (distilled) {
    // Before begin_forward(): code of the teacher may draw random numbers.
    const Autocast autocast(precision_, samples.inputs_BX.device());
    teacher_BO = parts_.teacher->outputs(data::arguments_of(samples, /*with_targets=*/false));
  }
  parts_.model.begin_forward({.step = parts_.clock.step, .first_sample = first_sample});
  watch_.before_forward();
  const auto [loss, outputs_BO] = loss_of_task(samples, num_counted);
  watch_.after_forward();
  if (!distilled) return loss;
  return loss * (1 - distilled->hardness) + parts_.loss.distilled_sum(outputs_BO, teacher_BO,
                                                                      samples.targets_BY,
                                                                      distilled->temperature) *
                                                distilled->hardness;
}

model::OwnLoss TrainingPass::loss_of_task(const data::Samples& samples, double num_counted) {
  const bool is_own = parts_.loss.is_own();
  const ForwardArguments arguments = data::arguments_of(samples, /*with_targets=*/is_own);
  at::Tensor outputs_BO;
  model::OwnLoss own;
  {
    const Autocast autocast(precision_, samples.inputs_BX.device());
    if (is_own)
      own = parts_.model.own_loss(arguments);
    else
      outputs_BO = parts_.model.forward_of(arguments);
  }
  if (parts_.tensors != nullptr) parts_.tensors->add_outputs(outputs_BO);
  if (!is_own) return {parts_.loss.sum(outputs_BO, samples.targets_BY), outputs_BO};
  // own_loss() is a mean over the targets that count.
  return {own.loss.to(at::kFloat).mul(num_counted), own.outputs_BO};
}

void TrainingPass::on_recipe_change(const recal::AppliedActions& due) {
  if (due.distillation_begins && parts_.teacher_is_copy) parts_.teacher->copy(parts_.model);
  if (due.trainable) recorded_pass_.forget();
}

// Capture and replay of one pass. Kernels of a graph use fixed addresses, so inputs are copied into
// recorded_->inputs, and any move of parameters discards the graph (forget()).

static std::string reason_of(const std::exception& error) {
  const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

bool RecordedPass::is_recordable() const {
  const TrainerParts& parts = pass_.parts();
  return !parts.model.reads_forward_pass() && !parts.model.has_layer_hook() &&
         !parts.reducer.may_send_in_backward();
}

RecordedPass::Shape RecordedPass::shape_of(const data::Samples& samples) const {
  return {.inputs = samples.inputs_BX.sizes().vec(),
          .targets = samples.targets_BY.sizes().vec(),
          .inputs_type = samples.inputs_BX.scalar_type(),
          .targets_type = samples.targets_BY.scalar_type(),
          .batch_norm_frozen = pass_.parts().model.batch_norms().is_frozen(),
          .num_semi_sparse_changes = pass_.parts().model.num_semi_sparse_changes()};
}

/// Discards the graph. The next passes run normally, so that one-time work, such as allocations, is
/// done before the next capture.
void RecordedPass::forget() {
  recorded_.reset();
  if (graph_ != nullptr) graph_->forget();
  num_more_ = 0;
}

/// Counts shapes by Boyer and Moore's vote: the usual shape is replaced after as many others.
void RecordedPass::count(const Shape& shape) {
  if (num_more_ == 0) usual_ = shape;
  num_more_ = shape == usual_ ? std::min(num_more_ + 1, kMost) : num_more_ - 1;
}

std::optional<LossSum> RecordedPass::run(const data::Samples& samples, const PassRequest& request) {
  const Shape shape = shape_of(samples);
  if (!is_recordable()) {
    pass_.parts().reducer.follow_backward(true);
    forget();
    return std::nullopt;
  }
  count(shape);
  if (recorded_ != nullptr && recorded_->shape == shape) return replay(samples, request);
  // The first passes also warm up kernels and memory, which a capture cannot do.
  if (!(shape == usual_) || num_more_ <= kPassesBefore || samples.targets_BY.size(0) == 0)
    return std::nullopt;
  if (!record(samples, request.weight, shape)) return std::nullopt;
  return replay(samples, request);
}

void RecordedPass::copy_in(const data::Samples& samples, double weight) {
  copy_to_device(samples.inputs_BX, recorded_->inputs.samples.inputs_BX);
  copy_to_device(samples.targets_BY, recorded_->inputs.samples.targets_BY);
  recorded_->inputs.weight.fill_(weight);
}

bool RecordedPass::record(const data::Samples& samples, double weight, const Shape& shape) {
  const TrainerParts& parts = pass_.parts();
  // Autograd's accumulator nodes run on the stream that created them: earlier ones must be gone.
  parts.reducer.follow_backward(false);
  parts.reducer.settle();
  recorded_ = std::make_unique<Recorded>();
  recorded_->shape = shape;
  const at::Device device = parts.flat_params.device();
  const auto room_for = [&](const at::Tensor& values) {
    return at::empty(values.sizes(), values.options().device(device));
  };
  // Only Lockstep's own networks are recorded: their batches have no further tensors.
  recorded_->inputs = {.samples = {room_for(samples.inputs_BX), room_for(samples.targets_BY)},
                       .weight = at::empty({}, at::TensorOptions(device))};
  copy_in(samples, weight);
  try {
    graph_->capture([&] {
      metrics::PhaseSeconds unused;
      recorded_->loss =
          pass_.compute(recorded_->inputs, {.phases = &unused}, HostWaits::kForNothing);
      if (!parts.model.batch_norms().empty()) recorded_->seen = pass_.statistics().take_seen();
    });
  } catch (const std::exception& error) {
    if (!parts.model.batch_norms().empty()) (void)pass_.statistics().take_seen();
    // The device refused once; no further attempt.
    graph_.reset();
    forget();
    parts.reducer.follow_backward(true);
    if (parts.control.rank() == 0)
      log::warning("train",
                   fmt::format("the GPU cannot record training passes, so they run without "
                               "train.cuda_graphs: {}",
                               reason_of(error)));
    return false;
  }
  if (parts.control.rank() == 0)
    log::info("train", fmt::format("training passes over [{}] are recorded (train.cuda_graphs)",
                                   fmt::join(shape.inputs, ", ")));
  return true;
}

LossSum RecordedPass::replay(const data::Samples& samples, const PassRequest& request) {
  const trace::Span span("forward and backward");
  const TrainerParts& parts = pass_.parts();
  // Waits for the gather of weights, which the graph reads.
  parts.reducer.settle();
  parts.reducer.prepare_for_backward(*request.completes);
  copy_in(samples, request.weight);
  graph_->replay();
  if (!parts.model.batch_norms().empty()) pass_.statistics().give_seen(recorded_->seen);
  return recorded_->loss;
}

}  // namespace lockstep::train
