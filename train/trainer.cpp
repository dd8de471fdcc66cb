#include "train/trainer.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "train/layout.h"
#include "train/loss.h"
#include "train/stopwatch.h"

namespace lockstep::train {
namespace {

enum VoteBit { kSaveBit, kStopBit, kEndBit };

uint32_t bits_of(const Votes& votes) {
  return (votes.save ? 1U << kSaveBit : 0) | (votes.stop ? 1U << kStopBit : 0) |
         (votes.end ? 1U << kEndBit : 0);
}

}  // namespace

StepReport Trainer::step(const Votes& votes) {
  Stopwatch whole, watch;
  StepReport report;
  metrics::PhaseSeconds& phases = report.phases;

  const recal::Applied due = parts_.recipe.apply_due(parts_.clock.step, parts_.control);
  follow(due);
  phases.modifier = watch.lap();
  const data::Batch batch = parts_.loader.next();
  phases.data = watch.lap();

  const double loss_sum = compute_gradients(batch, &phases);
  (void)watch.lap();
  const int64_t rank_samples = batch.examples.targets_B.size(0);
  const dist::StepTotals totals = parts_.reducer.finish({.loss_sum = loss_sum,
                                                         .num_samples = rank_samples,
                                                         .finite = std::isfinite(loss_sum),
                                                         .votes = bits_of(votes)});
  phases.allreduce = watch.lap();
  check(totals.num_samples == batch.global_num_samples,
        "the ranks' shares make up the global batch");

  report.rates = parts_.rates.at(parts_.clock.step);
  update(totals, &report);
  phases.optimizer = watch.lap();

  report.step = ++parts_.clock.step;
  report.epoch = parts_.clock.epoch();
  report.ends_epoch = parts_.clock.step_in_epoch() == 0;
  report.loss = totals.loss_mean;
  report.sparsity = parts_.recipe.sparsity();
  report.global_samples = totals.num_samples;
  report.rank_samples = rank_samples;
  report.bytes_reduced = totals.bytes_reduced;
  report.num_mask_updates = due.num_mask_updates;
  report.num_trainable = parts_.arena.num_trainable_elements();
  report.wants_save = totals.votes[kSaveBit] > 0;
  report.wants_stop = totals.votes[kStopBit] > 0;
  report.must_end = totals.votes[kEndBit] > 0;
  report.duration_s = whole.lap();
  phases.other = std::max(0.0, report.duration_s - phases.modifier - phases.data - phases.forward -
                                   phases.backward - phases.allreduce - phases.optimizer);
  return report;
}

double Trainer::compute_gradients(const data::Batch& batch, metrics::PhaseSeconds* phases) {
  parts_.arena.zero_grads();
  const at::Device device = parts_.arena.device();  // on the CPU, `to` gives the same tensor
  const at::Tensor inputs_BX = batch.examples.inputs_BX.to(device);
  const at::Tensor targets_B = batch.examples.targets_B.to(device);
  double loss_sum = 0;
  const int64_t num_parts = options_.replicas_to_aggregate;
  for (int64_t part = 0; part < num_parts; ++part) {
    if (part + 1 == num_parts)
      parts_.reducer.begin_backward();  // its gradients are the update's last
    const data::Share share = data::share_of(targets_B.size(0), part, num_parts);
    if (share.size() == 0) continue;
    Stopwatch watch;
    const at::Tensor logits_BC =
        parts_.model.forward(inputs_BX.narrow(0, share.begin, share.size()));
    const at::Tensor loss =
        cross_entropy_sum(logits_BC, targets_B.narrow(0, share.begin, share.size()));
    loss_sum += loss.item<double>();
    phases->forward += watch.lap();
    loss.backward();
    phases->backward += watch.lap();
  }
  return loss_sum;
}

recal::Applied Trainer::close() {
  const recal::Applied closing = parts_.recipe.apply_closing(parts_.clock.step, parts_.control);
  follow(closing);
  return closing;
}

void Trainer::follow(const recal::Applied& due) {
  follow_recipe(due, parts_.recipe, parts_.bucket_bytes, parts_.arena, parts_.optimizer,
                parts_.control);
}

void Trainer::update(const dist::StepTotals& totals, StepReport* report) {
  report->skipped = !totals.finite();
  num_skipped_in_a_row_ = report->skipped ? num_skipped_in_a_row_ + 1 : 0;
  if (num_skipped_in_a_row_ >= options_.max_nonfinite_steps)
    throw Error(ExitCode::kNonFinite, "train",
                fmt::format("the last {} updates up to step {} were not finite and were skipped; "
                            "lower the learning rate "
                            "or look at the data",
                            num_skipped_in_a_row_, parts_.clock.step))
        .everywhere();
  if (!report->skipped) {
    parts_.recipe.mask_gradients();
    parts_.optimizer.step(report->rates);
  }
  parts_.recipe.end_step(!report->skipped, parts_.control);
}

}  // namespace lockstep::train
