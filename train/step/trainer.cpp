// One update, in the order of step_asking(). All ranks take the same path, because every decision
// comes from the reduction's totals: the vote bits, the finite flag, the sample count. A branch on
// a local value would leave other ranks alone in a collective.
#include "train/step/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"
#include "dist/communicator.h"

namespace lockstep::train {

// Each rank decides alone whether to stop waiting; the reduction's sample count tells the others.

data::Batch DataWait::next_batch() {
  const trace::Span span("data");
  before_ = parts_.loader.position();
  has_left_ = false;
  if (!can_leave()) return parts_.loader.next();
  const auto begin = std::chrono::steady_clock::now();
  const auto waited_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::optional<data::Batch> batch = parts_.loader.next_unless([&] {
    // Before patience_s no stop is considered: data usually arrive in that time.
    if (waited_s() <= parts_.data_patience_s) return false;
    parts_.stop->listen();
    return is_asked_to_stop();
  });
  if (batch) return *std::move(batch);
  has_left_ = true;
  log::info("train", fmt::format("stop requested after {:.1f} s of waiting for the data of the "
                                 "next step: the step is skipped",
                                 waited_s()));
  return parts_.loader.without_samples();
}

bool DataWait::stops_here(bool is_long, StepReport* report) const {
  const bool leaves = has_left_ || (is_long && is_asked_to_stop());
  at::Tensor votes_3 = at::zeros({3}, at::kLong);
  votes_3[0] = leaves ? 1 : 0;
  votes_3[1] = parts_.stop->stop_asked() ? 1 : 0;
  votes_3[2] = parts_.stop->end_asked() ? 1 : 0;
  // Maximum over the ranks, so that all return the same.
  parts_.control.all_reduce(votes_3, dist::ReduceOp::kMax)->wait();
  if (votes_3[0].item<int64_t>() == 0) return false;
  report->wants_stop = votes_3[1].item<int64_t>() > 0;
  report->must_end = votes_3[2].item<int64_t>() > 0;
  return true;
}

// Counts are equal on all ranks, so all throw at the same step.

void StepLimits::begin_step(const StepClock& clock) {
  if (clock.step_in_epoch() == 0) num_damaged_of_epoch_ = 0;
}

void StepLimits::count_damaged_samples(int64_t num_samples, const StepClock& clock) {
  num_damaged_of_epoch_ += num_samples;
  if (num_damaged_of_epoch_ > max_damaged_)
    throw Error(ExitCode::kBadData, "data",
                fmt::format("{} damaged samples in this epoch, up to step {}; at most {} are "
                            "skipped (data.max_skipped); the log names them: repair the files",
                            num_damaged_of_epoch_, clock.step, max_damaged_))
        .everywhere();
}

void StepLimits::add_update(bool counted, bool is_excused) {
  if (counted)
    num_nonfinite_in_a_row_ = 0;
  else if (!is_excused)
    ++num_nonfinite_in_a_row_;
}

void StepLimits::require_finite(bool too_many, const StepClock& clock) const {
  if (!too_many) return;
  throw Error(ExitCode::kNonFinite, "train",
              fmt::format("the last {} updates up to step {} were not finite and were skipped; "
                          "lower the learning rate or check the data",
                          max_nonfinite_, clock.step))
      .everywhere();
}

namespace {

constexpr double kLogEvery_s = 60;

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

SkippedUpdates::SkippedUpdates(std::function<double()> clock_s)
    : clock_s_(clock_s ? std::move(clock_s) : steady_s) {}

std::optional<std::string> SkippedUpdates::add(int64_t step, const std::string& why) {
  ++num_skipped_;
  const double now_s = clock_s_();
  // Counted but not logged; the next message contains the number.
  if (logged_at_s_ && now_s - *logged_at_s_ < kLogEvery_s) return std::nullopt;
  logged_at_s_ = now_s;
  return fmt::format("step {}: the update was skipped, because {}; skipped so far: {}", step, why,
                     num_skipped_);
}

void WeightUpdate::on_recipe_change(const recal::AppliedActions& due) {
  if (!parts_.ema.is_on()) return;
  for (const int64_t param : due.changed_params)
    parts_.recipe.zero_pruned(param, parts_.ema.of(param));
}

static uint32_t bits_of(const Votes& votes) {
  return (votes.save ? 1U << kSaveBit : 0) | (votes.stop ? 1U << kStopBit : 0) |
         (votes.end ? 1U << kEndBit : 0) | (votes.save_done ? 1U << kSaveDoneBit : 0) |
         (votes.evaluate ? 1U << kEvaluateBit : 0) | (votes.pause ? 1U << kPauseBit : 0) |
         (votes.change ? 1U << kChangeBit : 0);
}

Trainer::Trainer(const TrainerParts& parts, const TrainOptions& options)
    : parts_(parts),
      recipe_part_(parts_),
      statistics_(parts_, options.batch_norm),
      moved_buffers_(parts.model, parts.mode.peers(), options.batch_norm, parts.mode.is_elastic()),
      update_(parts_),
      watch_(parts.model),
      pass_(parts_, options, statistics_, watch_),
      audit_(parts_, pass_, {&recipe_part_, &statistics_, &watch_}),
      data_wait_(parts_),
      // Collectives follow each other in this order, on all ranks. The moving average comes after
      // all other changes of parameters.
      step_parts_{&recipe_part_, &statistics_, &moved_buffers_, &update_,
                  &watch_,       &pass_,       &data_wait_},
      limits_(options.max_nonfinite_steps, parts.max_skipped_samples) {
  step_parts_.insert(step_parts_.end(), parts.more_parts.begin(), parts.more_parts.end());
  if (watch_.is_on()) parts.reducer.name_no_missing();
}

StepReport Trainer::step_asking(const Ask& ask) {
  Stopwatch whole, watch;
  Step step;
  StepReport& report = step.report;
  limits_.begin_step(parts_.clock);
  scale_before_ = parts_.loss_scale;
  progress_ = Progress::kHasData;
  step.batch = data_wait_.next_batch();
  report.phases.data = watch.lap();
  // A stop may come before the recipe's actions; then the step never begins.
  if (!begin(&step)) {
    progress_ = Progress::kNone;
    return report;
  }
  report.phases.modifier = watch.lap();
  begin_report(&step);

  compute_gradients(&step);
  reduce_gradients(&step, ask);
  if (report.totals.is_complete) {
    complete(&step);
  } else {  // too few samples: a rank left its samples out, so all leave the step out
    parts_.reducer.settle();
    end_parts(StepEnd::kLeftOut, &report);
  }

  progress_ = Progress::kNone;
  complete_report(&report);
  late_s_ = late_s_after(report);
  report.duration_s = whole.lap();
  report.phases.other = std::max(0.0, report.duration_s - report.phases.sum());
  return std::move(report);
}

/// Seconds that the other ranks have waited for this one. Rank 0 records its own wait for data by
/// itself.
double Trainer::late_s_after(const StepReport& report) const {
  if (!report.is_straggler) return 0;
  const double data_s = parts_.control.rank() == 0 ? report.phases.data : 0;
  const double others_s = report.totals.mean_of_others_s(parts_.control.world_size());
  return std::max(0.0, report.totals.own_work_s - others_s - data_s);
}

bool Trainer::begin(Step* step) {
  // Name of the watchdog's phase; includes the question to other ranks.
  const trace::Span span("masks");
  if (stops_before_recipe(&step->report)) return false;
  // A save may still read weights and masks, so it comes before their change.
  if (parts_.recipe.acts_at(parts_.clock.step)) before_changes();
  const recal::AppliedActions due = parts_.recipe.apply_due(parts_.clock.step, parts_.control);
  for (StepPart* part : step_parts_) part->on_recipe_change(due);
  progress_ = Progress::kBegun;
  for (num_begun_ = 0; num_begun_ < step_parts_.size(); ++num_begun_)
    step_parts_[num_begun_]->begin_step();
  step->report.num_mask_updates = due.num_mask_updates;
  return true;
}

bool Trainer::stops_before_recipe(StepReport* report) {
  const int64_t step = parts_.clock.step;
  // A step without recipe actions needs no question: the reduction tells about a stop.
  if (!data_wait_.can_leave() || !parts_.recipe.acts_at(step)) return false;
  const bool is_due = !parts_.recipe.timeline().due_at(step).empty();
  if (!data_wait_.stops_here(/*is_long=*/is_due, report)) return false;
  // No other part has begun the step.
  data_wait_.end_step(StepEnd::kLeftOut, 0);
  report->step = step;
  report->is_left_out = true;
  return true;
}

void Trainer::end_parts(StepEnd end, StepReport* report) {
  for (StepPart* part : step_parts_) part->end_step(end, report->rank_samples);
  report->is_left_out = end == StepEnd::kLeftOut;
}

void Trainer::agree_parts(StepEnd end, const StepReport& report) {
  for (StepPart* part : step_parts_) part->agree(end, report.rank_samples);
}

bool Trainer::undo_step() {
  const Progress progress = std::exchange(progress_, Progress::kNone);
  if (progress == Progress::kUpdates) return false;
  if (progress == Progress::kNone) return true;
  parts_.loss_scale = scale_before_;
  if (progress == Progress::kHasData) data_wait_.end_step(StepEnd::kLeftOut, 0);
  if (progress == Progress::kBegun)
    for (size_t i = 0; i < num_begun_; ++i) step_parts_[i]->end_step(StepEnd::kLeftOut, 0);
  return true;
}

recal::AppliedActions Trainer::close() {
  before_changes();
  const recal::AppliedActions closing =
      parts_.recipe.apply_closing(parts_.clock.step, parts_.control);
  for (StepPart* part : step_parts_) part->on_recipe_change(closing);
  return closing;
}

void Trainer::begin_report(Step* step) {
  const data::Batch& batch = step->batch;
  StepReport& report = step->report;
  report.global_samples = batch.global_num_samples;
  report.rank_samples = batch.samples.targets_BY.size(0);
  report.rank_skipped = batch.samples.num_skipped;
  report.rank_records = batch.samples.num_records;
  report.rank_record_bytes = batch.samples.num_record_bytes;
  report.queued_batches = parts_.loader.num_ready();
  report.loss_scale = parts_.loss_scale.value();
  report.rates = rates_at(parts_.clock.step, parts_.optimizer_options, parts_.recipe.timeline(),
                          parts_.total_steps);
  if (parts_.tensors != nullptr)
    parts_.tensors->begin(batch.samples.inputs_BX, batch.samples.targets_BY);
}

void Trainer::compute_gradients(Step* step) {
  step->counted_share = counted_share(step->batch);
  // The sum of all ranks is divided by the share after the reduction, so that elastic worlds agree
  // on each bit. NaN is applied at once, since the update will be skipped.
  const bool divides_now = parts_.mode.is_local() || std::isnan(step->counted_share);
  step->loss_divisor = divides_now ? step->counted_share : 1;
  // Weighted losses give gradients of the mean loss: summed over the ranks they are complete,
  // without a pass to divide.
  // Synchronous ranks form one group of peers; with local steps each rank is its own group.
  const int num_peer_groups = parts_.control.world_size() / parts_.mode.peers().world_size();
  const double weight = static_cast<double>(parts_.loss_scale.value() * num_peer_groups) /
                        (step->counted_share * static_cast<double>(step->batch.global_num_samples));
  const dist::StepRequests requests{
      .squared_grad_norm = parts_.optimizer_options.clip.norm.has_value(),
      .by_bucket = !clips() && !parts_.may_lose_ranks};
  LossSum& loss = step->loss;
  PassRequest request{.weight = weight, .completes = requests, .phases = &step->report.phases};
  // Nothing is reduced before the gradients have been compared.
  const bool is_audited = audit_.is_due();
  if (is_audited) {
    audit_.compute_others(&step->batch, weight);
    request.completes.reset();
  }
  loss = parts_.mode.compute_gradients(step->batch, request, pass_);
  if (is_audited) {
    audit_.compare(step->batch, weight);
    parts_.reducer.prepare_for_backward(requests);
  }
  if (step->loss_divisor == 1) return;
  loss.on_host /= step->loss_divisor;
  if (loss.on_device.defined()) loss.on_device = loss.on_device / step->loss_divisor;
}

/// Collective over the peers if targets may be ignored.
double Trainer::counted_share(const data::Batch& batch) {
  if (!parts_.loss.may_ignore()) return 1;
  const trace::Span span("wait for all-reduce");
  const TargetCounts counts = parts_.loss.count(batch.samples.targets_BY);
  at::Tensor counts_2 = at::zeros({2}, at::kLong);
  counts_2[0] = counts.counted;
  counts_2[1] = counts.all;
  parts_.mode.peers().all_reduce(counts_2, dist::ReduceOp::kSum)->wait();
  if (counts_2[1].item<int64_t>() == 0) return 1;
  const double share = counts_2[0].item<double>() / counts_2[1].item<double>();
  return share > 0 ? share : std::nan("");  // like PyTorch's mean of none: the update is skipped
}

/// Returns the early update; empty if updates wait for the host.
dist::GradientReducer::EarlyUpdate Trainer::early_update(const optim::StepRates& rates) {
  if (!parts_.runs_ahead() || clips() || !parts_.optimizer.takes_found_inf()) return {};
  return [this, rates](const at::Tensor& found_inf_1) {
    const trace::Span span("optimizer");
    // No reducer.settle() here: it would make the host wait for the device.
    if (parts_.before_changes) parts_.before_changes();
    update_.enqueue(rates, found_inf_1);
  };
}

dist::LocalStepStats Trainer::contribution(const Step& step, const Votes& votes, double work_s) {
  const data::Samples& samples = step.batch.samples;
  const int64_t num_samples = samples.targets_BY.size(0), global = step.batch.global_num_samples;
  const dist::Communicator& control = parts_.control;
  const bool has_share = data::shard_of(global, control.rank(), control.world_size()).size() > 0;
  // A rank with local steps updates by zeros if it has no samples, like any network.
  if (parts_.mode.is_local() && num_samples == 0) watch_.take_all_as_reached();
  return {.loss_sum = step.loss.on_host,
          .loss_sum_on_device = step.loss.on_device,
          .num_samples = num_samples,
          .num_skipped = samples.num_skipped,
          .finite = std::isfinite(step.loss.on_host),
          .votes = bits_of(votes),
          .work_s = work_s,
          .late_s = late_s_,
          .gradient_divisor = parts_.loss_scale.value(),
          .expected_samples = data_wait_.can_leave() ? std::optional(global) : std::nullopt,
          .has_left = data_wait_.has_left() && has_share,
          .counts = watch_.counts()};
}

void Trainer::reduce_gradients(Step* step, const Ask& ask) {
  StepReport& report = step->report;
  dist::GlobalStepStats& totals = report.totals;
  metrics::PhaseSeconds& phases = report.phases;
  const double wait_s = statistics_.take_wait_s();
  const auto work_s = [&] { return phases.data + phases.forward + phases.backward - wait_s; };
  Stopwatch watch;
  const dist::LocalStepStats local = parts_.mode.contribute(
      contribution(*step, ask(), parts_.runs_ahead() ? last_work_s_ : work_s()));
  const trace::Span span("wait for all-reduce");
  totals = parts_.reducer.finish(local, early_update(report.rates));
  report.forward_wrote = watch_.is_on() && totals.counts[1] > 0;
  if (report.forward_wrote) report.written_param = watch_.note_write();
  // Losses were summed over all targets; the mean is over those that count.
  totals.loss_mean /= step->counted_share / step->loss_divisor;
  check(
      parts_.mode.is_local() || totals.num_samples == report.global_samples || !totals.is_complete,
      "the ranks' shares make up the global batch");
  phases.backward += totals.compute_s;  // on a GPU including forward
  phases.allreduce += watch.lap() - totals.compute_s - totals.update_s;
  // Reported with the next step on a GPU, where this step's time is known too late.
  last_work_s_ = work_s();
}

void Trainer::complete(Step* step) {
  StepReport& report = step->report;
  Stopwatch watch;
  check_finite(step);
  update_weights(&report);
  ++parts_.clock.step;
  // late_wait_s was spent waiting inside the update, update_s computing inside finish().
  report.phases.optimizer = watch.lap() - report.totals.late_wait_s + report.totals.update_s;
  report.phases.allreduce += report.totals.late_wait_s;
  parts_.mode.join(parts_, &limits_, &report);
  report.phases.allreduce += watch.lap();
}

void Trainer::check_finite(Step* step) {
  StepReport& report = step->report;
  const dist::GlobalStepStats& totals = report.totals;
  limits_.count_damaged_samples(totals.num_skipped, parts_.clock);
  report.skipped = report.rank_skipped_update = !totals.finite();
  // The scale falls only if the gradients, not the losses, are non-finite.
  const bool scale_fell =
      parts_.loss_scale.end_step(totals.num_nonfinite_ranks == 0, totals.gradients_finite);
  // Excused: a lower scale, or a batch with only ignored targets, is no sign of divergence.
  limits_.add_update(!report.skipped, scale_fell || std::isnan(step->counted_share));
  if (report.skipped && !scale_fell) log_skipped(*step);
  // Ranks with local steps decide this together at the next average.
  if (!parts_.mode.is_local()) limits_.require_finite(limits_.too_many_nonfinite(), parts_.clock);
}

void Trainer::log_skipped(const Step& step) {
  constexpr const char* kAdvice =
      "is not finite (NaN or infinity): check the data and the learning rate";
  const int rank = parts_.control.rank(), world_size = parts_.control.world_size();
  std::string what = "the mean gradient";
  if (step.report.totals.num_nonfinite_ranks > 0) {
    const LossSum& sum = step.loss;
    const double loss = sum.on_device.defined() ? sum.on_device.item<double>() : sum.on_host;
    const int64_t first =
        dist::min_of(parts_.mode.peers(), std::isfinite(loss) ? world_size : rank);
    what = first < world_size ? fmt::format("the loss of rank {}", first) : "the sum of the losses";
  }
  const std::string why = std::isnan(step.counted_share)
                              ? "every target of the batch is ignored (-100)"
                              : fmt::format("{} {}", what, kAdvice);
  const std::optional<std::string> text = skipped_updates_.add(parts_.clock.step + 1, why);
  if (text && parts_.mode.peers().rank() == 0) log::warning("train", *text);
}

void Trainer::exclude_unreached(const dist::GlobalStepStats& totals) {
  if (totals.counts_nothing()) return;  // always so if watch_ is off
  update_.revert();                     // the device has skipped it
  const at::Tensor num_ranks_P = watch_.reached_P();
  parts_.reducer.sum(num_ranks_P);
  std::vector<int64_t> unreached;
  for (int64_t i = 0; i < num_ranks_P.numel(); ++i)
    if (num_ranks_P.const_data_ptr<int64_t>()[i] == 0) unreached.push_back(i);
  const std::vector<std::string> names = watch_.new_names(unreached);
  if (!names.empty() && parts_.control.rank() == 0)
    log::warning("train",
                 fmt::format("step {}: {} backward reached {}: they keep their values in such "
                             "steps, as in torch.optim (logged once)",
                             parts_.clock.step + 1,
                             parts_.mode.is_local() ? "rank 0 steps alone and its pass did not"
                                                    : "no rank's",
                             fmt::join(names, ", ")));
  parts_.optimizer.exclude(std::move(unreached));
}

void Trainer::update_weights(StepReport* report) {
  const trace::Span span("optimizer");
  // Order: wait for saves, agree, update, gather the values, then masks and statistics.
  before_changes();
  const StepEnd end = report->skipped ? StepEnd::kSkipped : StepEnd::kUpdated;
  if (!report->skipped) exclude_unreached(report->totals);
  agree_parts(end, *report);
  progress_ = Progress::kUpdates;
  if (!report->skipped) {
    if (!update_.is_enqueued()) {
      report->gradient_norm =
          optim::clip_gradients(parts_.optimizer_options.clip, parts_.flat_params.buffers(),
                                parts_.reducer.local_shards(), report->totals.squared_grad_norm);
      parts_.optimizer.step(report->rates, parts_.reducer.pending_shards());
    }
    // Completes the totals of late buckets; gather_values() requires it.
    parts_.reducer.finish_late(&report->totals);
    report->gathered = parts_.reducer.gather_values();
  }
  end_parts(end, report);
}

void Trainer::complete_report(StepReport* report) const {
  const dist::GlobalStepStats& totals = report->totals;
  report->step = parts_.clock.step;
  report->epoch = parts_.clock.epoch();
  report->ends_epoch = parts_.clock.step_in_epoch() == 0;
  report->loss = report->has_loss ? totals.loss_mean : std::nan("");
  report->sparsity = parts_.recipe.sparsity();
  report->is_straggler = report->ranks_agree && totals.is_straggler(parts_.control.world_size());
  report->late_s = report->ranks_agree && !parts_.mode.is_local() ? totals.late_s : 0;
  report->num_trainable = parts_.flat_params.num_trainable_elements();
  report->scales_losses = parts_.loss_scale.is_dynamic();
  report->wants_save = totals.votes[kSaveBit] > 0;
  report->wants_stop = totals.votes[kStopBit] > 0;
  report->save_is_done = totals.votes[kSaveDoneBit] == parts_.control.world_size();
  report->must_end = totals.votes[kEndBit] > 0;
  report->may_evaluate = totals.votes[kEvaluateBit] > 0;
  report->wants_pause = totals.votes[kPauseBit] > 0;
  report->has_changes = totals.votes[kChangeBit] > 0;
}

}  // namespace lockstep::train
