// Elastic runs and local steps. Elastic runs have fixed shards and a fixed tree of additions,
// whatever the number of ranks: the source of equal bits.
#include "train/step/step_modes.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "train/step/trainer.h"
#include "train/step/training_pass.h"

namespace lockstep::train {

LossSum StepMode::compute_gradients(const data::Batch& batch, const PassRequest& request,
                                    TrainingPass& pass) {
  return pass.run(batch.samples, batch.first_sample, request);
}

bool is_elastic_world_size(int world_size) {
  return world_size >= 1 && world_size <= kElasticShards && kElasticShards % world_size == 0;
}

std::vector<data::Shard> elastic_shards(int64_t global_num_samples, int rank, int world_size) {
  check(is_elastic_world_size(world_size), "elastic worlds have 1, 2, 4 or 8 ranks");
  const int num_shards = kElasticShards / world_size;
  const data::Shard mine = data::shard_of(global_num_samples, rank, world_size);
  std::vector<data::Shard> shards;
  for (int i = 0; i < num_shards; ++i) {
    const data::Shard shard =
        data::shard_of(global_num_samples, rank * num_shards + i, kElasticShards);
    shards.push_back({shard.begin - mine.begin, shard.end - mine.begin});
  }
  return shards;
}

at::Tensor ShardTree::add(std::vector<FlatBuffer>& buffers, at::Tensor numbers_V) {
  int level = 0;
  // A binary counter: two sums of one level combine to one of the next, as in the fixed tree.
  for (; num_kept_ > 0 && kept_[num_kept_ - 1].level == level; ++level) {
    const Node& left = kept_[--num_kept_];
    for (size_t i = 0; i < buffers.size(); ++i)
      if (!buffers[i].frozen) buffers[i].grads_E.add_(left.grads[i]);
    numbers_V = left.numbers_V + numbers_V;
  }
  if (++num_added_ < num_shards_) {
    keep(buffers, level, numbers_V);
    return numbers_V;
  }
  check(num_kept_ == 0, "the number of shards is a power of two");
  num_added_ = 0;
  return numbers_V;
}

void ShardTree::keep(std::vector<FlatBuffer>& buffers, int level, at::Tensor numbers_V) {
  if (num_kept_ == kept_.size()) kept_.emplace_back();
  Node& node = kept_[num_kept_++];
  node.level = level;
  node.numbers_V = std::move(numbers_V);
  node.grads.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].frozen) continue;
    const at::Tensor& grads_E = buffers[i].grads_E;
    at::Tensor& room = node.grads[i];
    // Memory is reused from step to step, unless the layout has changed.
    if (!room.defined() || room.sizes() != grads_E.sizes()) room = at::empty_like(grads_E);
    room.copy_(grads_E);
  }
}

LossSum Elastic::compute_gradients(const data::Batch& batch, const PassRequest& request,
                                   TrainingPass& pass) {
  const TrainerParts& parts = pass.parts();
  const data::Samples& all = batch.samples;
  const bool is_empty = all.targets_BY.size(0) == 0;
  PassRequest part = request;
  part.completes.reset();  // only the sum of all shards completes the update
  at::Tensor sums_V;       // losses, then statistics of batch normalisation
  for (const data::Shard& shard :
       elastic_shards(batch.global_num_samples, batch.rank, all_.world_size())) {
    data::Samples own = all;
    // Copied, since kernels may compute differently if samples have another alignment. A rank
    // without samples because of a stop still makes all passes.
    if (!is_empty)
      own = data::mapped(data::part_of(all, shard.begin, shard.size()),
                         [](const at::Tensor& values) { return values.clone(); });
    const LossSum loss = pass.run(own, batch.first_sample + shard.begin, part);
    sums_V = tree_.add(parts.flat_params.buffers(), pass.statistics().pack_seen(loss.on_host));
  }
  if (request.completes) parts.reducer.prepare_for_backward(*request.completes);
  return {.on_host = pass.statistics().unpack_seen(sums_V)};
}

// Between averages nothing is sent. contribute() and join() collect this rank's numbers in
// pending_. average() exchanges them first, then the state.

namespace {

bool changes_state(recal::ActionKind kind) {
  return kind != recal::ActionKind::kSetLearningRate && kind != recal::ActionKind::kSetWeightDecay;
}

/// Sorts entries: floating-point ones to `floats`, others to `counts`.
void sort_into(const StateList& list, std::vector<at::Tensor>* floats,
               std::vector<at::Tensor>* counts) {
  for (const StateEntry& entry : list)
    if (entry.tensor.defined())
      (entry.tensor.is_floating_point() ? floats : counts)->push_back(entry.tensor);
}

}  // namespace

bool LocalSteps::is_average_due(const TrainerParts& parts) const {
  const int64_t step = parts.clock.step;
  const auto due = parts.recipe.timeline().due_at(step);
  return step % sync_every_ == 0 || parts.clock.step_in_epoch() == 0 || step >= parts.total_steps ||
         std::any_of(due.begin(), due.end(),
                     [](const recal::Action& action) { return changes_state(action.kind); });
}

dist::LocalStepStats LocalSteps::contribute(const dist::LocalStepStats& local) {
  step_ = local;
  pending_.votes |= local.votes;
  pending_.num_skipped += local.num_skipped;
  pending_.work_s += local.work_s;
  dist::LocalStepStats own = local;
  own.votes = 0;
  own.num_skipped = 0;
  // A short batch may leave a rank without samples.
  own.num_samples = std::max<int64_t>(1, own.num_samples);
  return own;
}

void LocalSteps::join(const TrainerParts& parts, StepLimits* limits, StepReport* report) {
  if (limits->too_many_nonfinite()) pending_.votes |= 1U << kNonFiniteBit;
  if (!report->skipped) {
    has_updated_ = true;
    pending_.loss_sum += step_.loss_sum;
    pending_.num_samples += step_.num_samples;
  }
  report->ranks_agree = is_average_due(parts);
  if (!report->ranks_agree) {
    report->has_loss = report->rank_samples > 0;
    report->totals.bytes_reduced = report->totals.bytes_saved = 0;  // nothing was sent
    report->totals.bucket_s.clear();
    return;
  }
  report->totals = average(parts);
  report->skipped = report->totals.num_nonfinite_ranks == all_.world_size();
  limits->count_damaged_samples(report->totals.num_skipped, parts.clock);
  limits->require_finite(report->totals.votes[kNonFiniteBit] > 0, parts.clock);
}

namespace {

/// State to be averaged.
struct LearnedState {
  std::vector<at::Tensor> means;       // float32
  std::vector<at::Tensor> statistics;  // floats, complex ones as pairs
  std::vector<at::Tensor> counts;      // int64, reduced to the maximum
};

/// Returns the slots to average. Frozen parameters' slots are equal on all ranks since the freeze.
StateList moving_slots(const TrainerParts& parts) {
  std::set<std::string> frozen;
  for (const FlatBuffer& buffer : parts.flat_params.buffers())
    for (const FlatSlice& slice : buffer.slices)
      if (buffer.frozen)
        frozen.insert("optimizer/" +
                      slashed(parts.model.params()[static_cast<size_t>(slice.param)].name));
  StateList slots = parts.optimizer.state();
  std::erase_if(slots, [&](const StateEntry& slot) {
    return frozen.contains(slot.key.substr(0, slot.key.rfind('/')));
  });
  return slots;
}

LearnedState learned_state(const TrainerParts& parts) {
  LearnedState state;
  for (const FlatBuffer& buffer : parts.flat_params.buffers())
    if (!buffer.frozen) state.means.push_back(buffer.values_E);
  sort_into(moving_slots(parts), &state.means, &state.counts);
  sort_into(parts.ema.state(), &state.means, &state.counts);
  std::vector<model::Buffer> buffers = parts.model.buffers();
  for (model::Buffer& buffer : parts.model.unsaved_buffers()) buffers.push_back(std::move(buffer));
  for (const model::Buffer& buffer : buffers)
    if (buffer.tensor.numel() > 0) {
      const at::Tensor values = dist::real_view(buffer.tensor);
      (values.is_floating_point() ? state.statistics : state.counts).push_back(values);
    }
  return state;
}

}  // namespace

dist::GlobalStepStats LocalSteps::average(const TrainerParts& parts) {
  const at::NoGradGuard no_grad;
  Stopwatch watch;
  const int64_t bytes_before = all_.bytes_reduced();
  dist::LocalStepStats since = std::exchange(pending_, {});
  // A rank without any update counts as non-finite. If all are, the average counts as skipped.
  since.finite = std::exchange(has_updated_, false);
  const at::Tensor sums_V = dist::encode_stats(since, all_.device());
  all_.all_reduce(sums_V, dist::ReduceOp::kSum)->wait_on_host();
  dist::GlobalStepStats totals = dist::decode_stats(sums_V);
  totals.own_work_s = since.work_s;

  const LearnedState state = learned_state(parts);
  take_largest(all_, state.counts);
  dist::mean_over_ranks(all_, state.means, bucket_bytes_);
  average_statistics(state.statistics);
  all_.settle();
  totals.bytes_reduced = all_.bytes_reduced() - bytes_before;
  const int num_ranks = all_.world_size();
  totals.bytes_sent = 2 * (num_ranks - 1) * totals.bytes_reduced / num_ranks;
  totals.reduce_s = totals.wait_s = watch.lap();
  return totals;
}

/// Averages in float64, which keeps equal values unchanged. Values that are float64 themselves may
/// change in the last bits.
void LocalSteps::average_statistics(const std::vector<at::Tensor>& statistics) {
  const at::TensorOptions wide = at::TensorOptions(all_.device()).dtype(at::kDouble);
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : statistics) values.push_back(tensor.to(wide).contiguous());
  if (!statistics_of_root_)
    dist::mean_over_ranks(all_, values, bucket_bytes_);
  else
    for (const at::Tensor& value : values) all_.broadcast(value, 0);
  for (size_t i = 0; i < values.size(); ++i) statistics[i].copy_(values[i]);
}

}  // namespace lockstep::train
