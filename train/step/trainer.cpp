// One update, in the order of step_asking(). All ranks take the same path, because every decision
// comes from the reduction's totals: the vote bits, the finite flag, the sample count. A branch on
// a local value would leave other ranks alone in a collective.
#include "train/step/trainer.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/tensors/tensor_memory.h"
#include "base/trace.h"
#include "dist/collectives.h"
#include "train/step/apply_recipe.h"
#include "train/step/step_report.h"

namespace lockstep::train {
namespace {

/// Bits of LocalStepStats::votes.
enum VoteBit {
  kSaveBit,
  kStopBit,
  kEndBit,
  kSaveDoneBit,
  kEvaluateBit,
  kNonFiniteBit,
  kPauseBit,
  kChangeBit
};
static_assert(kChangeBit < dist::kNumVotes);

uint32_t bits_of(const Votes& votes) {
  return (votes.save ? 1U << kSaveBit : 0) | (votes.stop ? 1U << kStopBit : 0) |
         (votes.end ? 1U << kEndBit : 0) | (votes.save_done ? 1U << kSaveDoneBit : 0) |
         (votes.evaluate ? 1U << kEvaluateBit : 0) | (votes.pause ? 1U << kPauseBit : 0) |
         (votes.change ? 1U << kChangeBit : 0);
}

LossSum divided(LossSum sum, double divisor) {
  if (divisor == 1) return sum;
  sum.here /= divisor;
  if (sum.there.defined()) sum.there = sum.there / divisor;
  return sum;
}

/// Returns a copy: kernels may compute differently if samples have another alignment.
data::Samples part_of(const data::Samples& all, const data::Shard& share) {
  return {all.inputs_BX.narrow(0, share.begin, share.size()).clone(),
          all.targets_BY.narrow(0, share.begin, share.size()).clone()};
}

}  // namespace

Trainer::Trainer(const TrainerParts& parts, const TrainOptions& options)
    : parts_(parts),
      options_(options),
      statistics_(parts.model, parts.peers(), options.batch_norm),
      moved_buffers_(parts.model, parts.peers(), options.batch_norm, parts.elastic),
      watch_(parts.model.runs_user_code() ? std::make_unique<ParamsWatch>(parts.model.params())
                                          : nullptr),
      pass_({parts.model, parts.flat_params, parts.reducer, parts.loss, statistics_, parts.clock,
             parts.tensors, watch_.get(), options.precision, options.replicas_to_aggregate}),
      limits_(options.max_nonfinite_steps, parts.max_skipped_samples),
      data_wait_(parts.loader, parts.control, parts.local_steps != nullptr ? nullptr : parts.stop,
                 parts.data_patience_s) {
  if (watch_ != nullptr) parts.reducer.name_no_missing();
  if (parts.elastic) shard_tree_.emplace(kElasticShards / parts.control.world_size());
  if (parts.graph != nullptr)
    recorded_pass_.emplace(RecordedPass::Parts{.pass = pass_,
                                               .model = parts.model,
                                               .reducer = parts.reducer,
                                               .statistics = statistics_,
                                               .device = parts.flat_params.device(),
                                               .tells = parts.control.rank() == 0},
                           parts.graph);
}

StepReport Trainer::step_asking(const Ask& ask) {
  Stopwatch whole, watch;
  StepReport report;
  limits_.begin_step(parts_.clock);
  const data::Batch batch = data_wait_.next_batch();
  report.phases.data = watch.lap();
  // A stop may come before the recipe's actions; then the step never begins.
  if (!apply_recipe(&report)) return report;
  report.phases.modifier = watch.lap();
  begin_report(batch, &report);

  loss_ = compute_gradients(batch, &report.phases);
  reduce_gradients(batch, loss_, ask, &report);
  // Too few samples: a rank left its samples out, so all skip the step.
  if (report.totals.is_complete)
    update_weights(&report);
  else
    leave_out(&report);

  complete_report(&report);
  report.duration_s = whole.lap();
  report.phases.other = std::max(0.0, report.duration_s - report.phases.sum());
  return report;
}

void Trainer::begin_report(const data::Batch& batch, StepReport* report) const {
  report->global_samples = batch.global_num_samples;
  report->rank_samples = batch.samples.targets_BY.size(0);
  report->rank_skipped = batch.samples.num_skipped;
  report->rank_records = batch.samples.num_records;
  report->rank_record_bytes = batch.samples.num_record_bytes;
  report->queued_batches = parts_.loader.num_ready();
  report->loss_scale = loss_scale();
  report->rates = parts_.rates.at(parts_.clock.step);
  if (parts_.tensors != nullptr)
    parts_.tensors->begin(batch.samples.inputs_BX, batch.samples.targets_BY);
}

bool Trainer::stops_before_recipe(StepReport* report) {
  const int64_t step = parts_.clock.step;
  // A step without recipe actions needs no question: the reduction tells about a stop.
  if (!data_wait_.can_leave() || !parts_.recipe.acts_at(step)) return false;
  const bool is_due = !parts_.recipe.timeline().due_at(step).empty();
  if (!data_wait_.stops_here(/*is_long=*/is_due, report)) return false;
  data_wait_.take_back();
  report->step = step;
  report->is_left_out = true;
  return true;
}

/// Returns the early update. On GPUs it is enqueued before the host knows whether it is finite; the
/// kernel skips it on the device if not.
dist::GradientReducer::EarlyUpdate Trainer::early_update(const optim::StepRates& rates) {
  if (!runs_ahead() || parts_.clip.norm || parts_.clip.value || !parts_.optimizer.takes_found_inf())
    return {};
  return [this, rates](const at::Tensor& found_inf_1) {
    const trace::Span span("optimizer");
    // No reducer.settle() here: it would make the host wait for the device.
    if (parts_.before_changes) parts_.before_changes();
    parts_.optimizer.step(rates, {}, found_inf_1);
    is_updated_ = true;
  };
}

void Trainer::leave_out(StepReport* report) {
  // The device has skipped the early update; undo its count.
  if (std::exchange(is_updated_, false)) parts_.optimizer.uncount();
  parts_.reducer.settle();
  parts_.recipe.end_step(/*updated=*/false, parts_.control);
  statistics_.end_step(/*updated=*/false);
  moved_buffers_.end_step(/*updated=*/false, /*num_samples=*/0);
  data_wait_.take_back();
  report->is_left_out = true;
}

bool Trainer::apply_recipe(StepReport* report) {
  // Name of the watchdog's phase; includes the question to other ranks.
  const trace::Span span("masks");
  if (stops_before_recipe(report)) return false;
  // A save may still read weights and masks, so it comes before their change.
  if (parts_.recipe.acts_at(parts_.clock.step)) before_changes();
  const recal::Applied due = parts_.recipe.apply_due(parts_.clock.step, parts_.control);
  apply_changes(due);
  statistics_.follow(parts_.recipe.timeline(), parts_.clock.step);
  moved_buffers_.begin_step();
  if (watch_ != nullptr) watch_->begin_step();
  report->num_mask_updates = due.num_mask_updates;
  return true;
}

void Trainer::reduce_gradients(const data::Batch& batch, const LossSum& loss, const Ask& ask,
                               StepReport* report) {
  metrics::PhaseSeconds& phases = report->phases;
  const double wait_s = statistics_.take_wait_s();
  const auto work_s = [&] { return phases.data + phases.forward + phases.backward - wait_s; };
  Stopwatch watch;
  dist::LocalStepStats share{.loss_sum = loss.here,
                             .loss_sum_there = loss.there,
                             .num_samples = batch.samples.targets_BY.size(0),
                             .num_skipped = batch.samples.num_skipped,
                             .finite = std::isfinite(loss.here),
                             .votes = bits_of(ask()),
                             .work_s = runs_ahead() ? work_s_ : work_s(),
                             .gradient_divisor = loss_scale()};
  const dist::Communicator& control = parts_.control;
  share.has_left =
      data_wait_.has_left() &&
      data::shard_of(batch.global_num_samples, control.rank(), control.world_size()).size() > 0;
  if (data_wait_.can_leave()) share.expected_samples = batch.global_num_samples;
  // A rank with local steps updates by zeros if it has no samples, like any network.
  const bool learns_alone = parts_.local_steps != nullptr;
  if (watch_ != nullptr && learns_alone && share.num_samples == 0) watch_->take_all_as_reached();
  if (watch_ != nullptr)
    share.counts = {static_cast<double>(watch_->num_missing()), watch_->has_written() ? 1.0 : 0.0};
  if (parts_.local_steps != nullptr) share = parts_.local_steps->take(share);
  const trace::Span span("wait for all-reduce");
  report->totals = parts_.reducer.finish(share, early_update(report->rates));
  report->forward_wrote = watch_ != nullptr && report->totals.counts[1] > 0;
  if (report->forward_wrote) report->written_param = watch_->note_write();
  // Losses were summed over all targets; the mean is over those that count.
  if (parts_.local_steps == nullptr) report->totals.loss_mean /= counted_share_;
  check(parts_.local_steps != nullptr || report->totals.num_samples == batch.global_num_samples ||
            !report->totals.is_complete,
        "the ranks' shares make up the global batch");
  phases.backward += report->totals.compute_s;  // on a GPU including forward
  phases.allreduce += watch.lap() - report->totals.compute_s - report->totals.update_s;
  // Reported with the next step on a GPU, where this step's time is known too late.
  work_s_ = work_s();
}

void Trainer::update_weights(StepReport* report) {
  Stopwatch watch;
  check_finite(report);
  update(report);
  // late_wait_s was spent waiting inside update(), update_s computing inside finish().
  ++parts_.clock.step;
  report->phases.optimizer = watch.lap() - report->totals.late_wait_s + report->totals.update_s;
  report->phases.allreduce += report->totals.late_wait_s;
  if (parts_.local_steps != nullptr) join_local_steps(report);
  report->phases.allreduce += watch.lap();
}

void Trainer::complete_report(StepReport* report) const {
  const dist::GlobalStepStats& totals = report->totals;
  report->step = parts_.clock.step;
  report->epoch = parts_.clock.epoch();
  report->ends_epoch = parts_.clock.step_in_epoch() == 0;
  report->loss = report->has_loss ? totals.loss_mean : std::nan("");
  report->sparsity = parts_.recipe.sparsity();
  report->is_straggler = report->ranks_agree && totals.is_straggler(parts_.control.world_size());
  report->num_trainable = parts_.flat_params.num_trainable_elements();
  report->scales_losses = parts_.loss_scale != nullptr && parts_.loss_scale->is_dynamic();
  report->wants_save = totals.votes[kSaveBit] > 0;
  report->wants_stop = totals.votes[kStopBit] > 0;
  report->save_is_done = totals.votes[kSaveDoneBit] == parts_.control.world_size();
  report->must_end = totals.votes[kEndBit] > 0;
  report->may_evaluate = totals.votes[kEvaluateBit] > 0;
  report->wants_pause = totals.votes[kPauseBit] > 0;
  report->has_changes = totals.votes[kChangeBit] > 0;
}

LossSum Trainer::compute_gradients(const data::Batch& batch, metrics::PhaseSeconds* phases) {
  // Weighted losses give gradients of the mean loss: summed over the ranks they are complete,
  // without a pass to divide.
  const int64_t num_alike = parts_.local_steps != nullptr ? parts_.local_steps->num_ranks() : 1;
  counted_share_ = counted_share(batch);
  const double weight = static_cast<double>(loss_scale() * num_alike) /
                        (counted_share_ * static_cast<double>(batch.global_num_samples));
  if (!shard_tree_)
    return divided(
        gradients_of(batch.samples, batch.first_sample, weight, /*completes=*/true, phases),
        loss_divisor());
  at::Tensor sums_V;  // losses, then statistics of batch normalisation
  const dist::Communicator& control = parts_.control;
  for (const data::Shard& shard :
       elastic_shards(batch.global_num_samples, control.rank(), control.world_size())) {
    const LossSum loss =
        gradients_of(data_wait_.has_left() ? batch.samples : part_of(batch.samples, shard),
                     batch.first_sample + shard.begin, weight, /*completes=*/false, phases);
    sums_V = shard_tree_->add(parts_.flat_params.buffers(), statistics_.take_seen_after(loss.here));
  }
  parts_.reducer.prepare_for_backward(requests());  // sums are complete: no backward pass follows
  return divided({.here = statistics_.give_seen_after(sums_V)}, loss_divisor());
}

/// Divisor of a rank's loss before the reduction. The sum of all ranks is divided by the share
/// afterwards, so that elastic worlds agree on each bit. NaN is applied at once, since the update
/// will be skipped.
double Trainer::loss_divisor() const {
  return parts_.local_steps != nullptr || std::isnan(counted_share_) ? counted_share_ : 1;
}

double Trainer::counted_share(const data::Batch& batch) const {
  if (!parts_.loss.may_ignore()) return 1;
  const trace::Span span("wait for all-reduce");
  const at::Tensor& targets_BT = batch.samples.targets_BY;
  at::Tensor counts_2 = at::zeros({2}, at::kLong);
  counts_2[0] = targets_BT.ne(data::kIgnoredTarget).sum();
  counts_2[1] = targets_BT.numel();
  if (parts_.local_steps == nullptr)
    parts_.control.all_reduce(counts_2, dist::ReduceOp::kSum)->wait();
  if (counts_2[1].item<int64_t>() == 0) return 1;
  const double share = counts_2[0].item<double>() / counts_2[1].item<double>();
  return share > 0 ? share : std::nan("");  // like PyTorch's mean of none: the update is skipped
}

LossSum Trainer::gradients_of(const data::Samples& samples, int64_t first_sample, double weight,
                              bool completes, metrics::PhaseSeconds* phases) {
  if (completes && recorded_pass_) {
    Stopwatch watch;
    const std::optional<LossSum> loss = recorded_pass_->run(samples, weight, requests());
    phases->backward += watch.lap();
    if (loss) return *loss;
  }
  const at::Device device = parts_.flat_params.device();
  const PassInputs inputs{.inputs_BX = to_device(samples.inputs_BX, device),
                          .targets_BY = to_device(samples.targets_BY, device),
                          .first_sample = first_sample,
                          .weight = at::full({}, weight, at::TensorOptions(device))};
  return pass_.run(inputs, completes ? std::optional(requests()) : std::nullopt,
                   runs_ahead() ? HostWaits::kForPeers : HostWaits::kForLosses, phases);
}

recal::Applied Trainer::close() {
  before_changes();
  const recal::Applied closing = parts_.recipe.apply_closing(parts_.clock.step, parts_.control);
  apply_changes(closing);
  return closing;
}

void Trainer::apply_changes(const recal::Applied& due) {
  // Sharded state must be complete before a new layout shards it differently.
  if (due.trainable) parts_.reducer.complete(parts_.optimizer.sharded_state());
  apply_recipe_changes(due, parts_.recipe, parts_.bucket_bytes, parts_.flat_params,
                       parts_.optimizer, parts_.control);
  if (due.trainable && recorded_pass_) recorded_pass_->forget();
  if (due.trainable && watch_ != nullptr) watch_->follow();
  if (parts_.ema != nullptr && parts_.ema->is_on())
    for (const int64_t param : due.changed_params)
      parts_.recipe.zero_pruned(param, parts_.ema->of(param));
  // Masks and layout are unchanged: reducer and optimizer already have them.
  if (masks_are_handed_ && !due.masks_changed && !due.trainable) return;
  if (parts_.reducer.is_sharded() && (!masks_are_handed_ || due.trainable))
    parts_.optimizer.set_shards(parts_.reducer.local_shards());
  set_masks(parts_.recipe.masks(), parts_.flat_params.buffers(), parts_.clip.norm.has_value(),
            parts_.reducer, parts_.optimizer);
  tell_layers(parts_.recipe.masks(), parts_.flat_params.params());
  masks_are_handed_ = true;
}

void Trainer::check_finite(StepReport* report) {
  const dist::GlobalStepStats& totals = report->totals;
  limits_.add_damaged(totals.num_skipped, parts_.clock);
  report->skipped = report->rank_skipped_update = !totals.finite();
  const bool scale_fell =
      parts_.loss_scale != nullptr &&
      // The scale falls only if the gradients, not the losses, are non-finite.
      parts_.loss_scale->end_step(totals.num_nonfinite_ranks == 0, totals.gradients_finite);
  // Excused: a lower scale, or a batch with only ignored targets, is no sign of divergence.
  limits_.add_update(!report->skipped, scale_fell || std::isnan(counted_share_));
  if (report->skipped && !scale_fell) tell_skipped(*report);
  if (parts_.local_steps == nullptr)
    limits_.require_finite(limits_.too_many_nonfinite(), parts_.clock);
}

void Trainer::tell_skipped(const StepReport& report) {
  const int rank = parts_.control.rank(), world_size = parts_.control.world_size();
  const bool is_loss = report.totals.num_nonfinite_ranks > 0,
             is_local = parts_.local_steps != nullptr;
  std::string what = "the mean gradient";
  constexpr const char* kAdvice =
      "is not finite (NaN or infinity): look at the data and the learning rate";
  if (is_loss) {
    const double loss = loss_.there.defined() ? loss_.there.item<double>() : loss_.here;
    int64_t first = std::isfinite(loss) ? world_size : rank;
    if (!is_local) first = dist::min_of(parts_.control, first);
    what = first < world_size ? fmt::format("the loss of rank {}", first) : "the sum of the losses";
  }
  const std::string why = std::isnan(counted_share_) ? "every target of the batch is ignored (-100)"
                                                     : fmt::format("{} {}", what, kAdvice);
  const std::optional<std::string> text = skipped_updates_.add(parts_.clock.step + 1, why);
  if (text && (is_local || rank == 0)) log::warning("train", *text);
}

void Trainer::leave_out_unreached(const dist::GlobalStepStats& totals) {
  if (watch_ == nullptr || totals.counts_nothing()) return;
  if (std::exchange(is_updated_, false)) parts_.optimizer.uncount();  // the device has skipped it
  const at::Tensor num_ranks_P = watch_->reached_P();
  parts_.reducer.sum(num_ranks_P);
  std::vector<int64_t> unreached;
  for (int64_t i = 0; i < num_ranks_P.numel(); ++i)
    if (num_ranks_P.const_data_ptr<int64_t>()[i] == 0) unreached.push_back(i);
  const std::vector<std::string> names = watch_->new_names(unreached);
  if (!names.empty() && parts_.control.rank() == 0)
    log::warning("train", fmt::format("step {}: {} backward reached {}: they keep their "
                                      "values in such steps, as in torch.optim (said once)",
                                      parts_.clock.step + 1,
                                      parts_.local_steps ? "rank 0 steps alone and its pass did not"
                                                         : "no rank's",
                                      fmt::join(names, ", ")));
  parts_.optimizer.leave_out(std::move(unreached));
}

void Trainer::update(StepReport* report) {
  const trace::Span span("optimizer");
  // Order: wait for saves, update, gather the values, then masks and statistics.
  before_changes();
  if (!report->skipped) {
    leave_out_unreached(report->totals);
    if (!is_updated_) {
      report->gradient_norm =
          optim::clip_gradients(parts_.clip, parts_.flat_params.buffers(),
                                parts_.reducer.local_shards(), report->totals.squared_grad_norm);
      parts_.optimizer.step(report->rates, parts_.reducer.late_shards());
    }
    // Completes the totals of late buckets; gather_values() requires it.
    parts_.reducer.finish_late(&report->totals);
    report->gathered = parts_.reducer.gather_values();
  }
  if (std::exchange(is_updated_, false) && report->skipped) parts_.optimizer.uncount();
  parts_.recipe.end_step(!report->skipped, parts_.control);
  statistics_.end_step(!report->skipped);
  moved_buffers_.end_step(!report->skipped, report->rank_samples);
  if (parts_.ema != nullptr && !report->skipped) parts_.ema->update();
}

void Trainer::join_local_steps(StepReport* report) {
  LocalSteps& local = *parts_.local_steps;
  local.end_step(!report->skipped, limits_.too_many_nonfinite() ? 1U << kNonFiniteBit : 0);
  report->ranks_agree = local.mean_after(parts_.clock.step);
  if (!report->ranks_agree) {
    report->has_loss = report->rank_samples > 0;
    report->totals.bytes_reduced = report->totals.bytes_saved = 0;  // nothing was sent
    report->totals.bucket_s.clear();
    return;
  }
  report->totals = local.average();
  report->skipped = report->totals.num_nonfinite_ranks == local.num_ranks();
  limits_.add_damaged(report->totals.num_skipped, parts_.clock);
  limits_.require_finite(report->totals.votes[kNonFiniteBit] > 0, parts_.clock);
}

}  // namespace lockstep::train
