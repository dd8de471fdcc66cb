// Elastic runs and local steps. Elastic runs have fixed shards and a fixed tree of additions,
// whatever the number of ranks: the source of equal bits.
#include "train/step/sync_modes.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "dist/collectives.h"

namespace lockstep::train {

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

// Between averages nothing is sent; take() and end_step() collect this rank's numbers in pending_.
// average() exchanges them first, then the state.

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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

bool LocalSteps::mean_after(int64_t step) const {
  const auto due = parts_.timeline.due_at(step);
  return step % parts_.sync_every == 0 || step % parts_.clock.steps_per_epoch == 0 ||
         step >= parts_.total_steps ||
         std::any_of(due.begin(), due.end(),
                     [](const recal::Action& action) { return changes_state(action.kind); });
}

dist::LocalStepStats LocalSteps::take(const dist::LocalStepStats& share) {
  step_ = share;
  pending_.votes |= share.votes;
  pending_.num_skipped += share.num_skipped;
  pending_.work_s += share.work_s;
  dist::LocalStepStats own = share;
  own.votes = 0;
  own.num_skipped = 0;
  // A short batch may leave a rank without samples.
  own.num_samples = std::max<int64_t>(1, own.num_samples);
  return own;
}

void LocalSteps::end_step(bool updated, uint32_t votes) {
  pending_.votes |= votes;
  if (!updated) return;
  has_updated_ = true;
  pending_.loss_sum += step_.loss_sum;
  pending_.num_samples += step_.num_samples;
}

dist::GlobalStepStats LocalSteps::average() {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes_before = parts_.comm.bytes_reduced();
  dist::LocalStepStats since = std::exchange(pending_, {});
  // A rank without any update counts as non-finite. If all are, the average counts as skipped.
  since.finite = std::exchange(has_updated_, false);
  const at::Tensor sums_V = dist::to_numbers(since, parts_.comm.device());
  parts_.comm.all_reduce(sums_V, dist::ReduceOp::kSum)->wait_on_host();
  dist::GlobalStepStats totals = dist::from_numbers(sums_V);
  totals.own_work_s = since.work_s;

  const State state = this->state();
  take_largest(state.counts);
  dist::mean_over_ranks(parts_.comm, state.means, parts_.bucket_bytes);
  average_statistics(state.statistics);
  parts_.comm.settle();
  totals.bytes_reduced = parts_.comm.bytes_reduced() - bytes_before;
  totals.bytes_sent = 2 * (num_ranks() - 1) * totals.bytes_reduced / num_ranks();
  totals.reduce_s = totals.wait_s = seconds_since(start);
  return totals;
}

/// Returns the slots to average. Slots of frozen parameters have not changed since the average
/// before the freeze.
StateList LocalSteps::moving_slots() {
  std::set<std::string> frozen;
  for (const FlatBuffer& buffer : parts_.flat_params.buffers())
    for (const FlatSlice& slice : buffer.slices)
      if (buffer.frozen)
        frozen.insert("optimizer/" +
                      slashed(parts_.model.params()[static_cast<size_t>(slice.param)].name));
  StateList slots = parts_.optimizer.state();
  std::erase_if(slots, [&](const StateEntry& slot) {
    return frozen.contains(slot.key.substr(0, slot.key.rfind('/')));
  });
  return slots;
}

LocalSteps::State LocalSteps::state() {
  State state;
  for (const FlatBuffer& buffer : parts_.flat_params.buffers())
    if (!buffer.frozen) state.means.push_back(buffer.values_E);
  sort_into(moving_slots(), &state.means, &state.counts);
  if (parts_.ema != nullptr) sort_into(parts_.ema->state(), &state.means, &state.counts);
  std::vector<model::Buffer> buffers = parts_.model.buffers();
  for (model::Buffer& buffer : parts_.model.unsaved_buffers()) buffers.push_back(std::move(buffer));
  for (const model::Buffer& buffer : buffers)
    if (buffer.tensor.numel() > 0) {
      const at::Tensor values = dist::real_view(buffer.tensor);
      (values.is_floating_point() ? state.statistics : state.counts).push_back(values);
    }
  return state;
}

/// Averages in float64, which keeps equal values unchanged. Values that are float64 themselves may
/// change in the last bits.
void LocalSteps::average_statistics(const std::vector<at::Tensor>& statistics) {
  const at::TensorOptions wide = at::TensorOptions(parts_.comm.device()).dtype(at::kDouble);
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : statistics) values.push_back(tensor.to(wide).contiguous());
  if (!parts_.statistics_of_root)
    dist::mean_over_ranks(parts_.comm, values, parts_.bucket_bytes);
  else
    for (const at::Tensor& value : values) parts_.comm.broadcast(value, 0);
  for (size_t i = 0; i < values.size(); ++i) statistics[i].copy_(values[i]);
}

void LocalSteps::take_largest(const std::vector<at::Tensor>& counts) {
  if (counts.empty()) return;
  const at::TensorOptions options(parts_.comm.device());
  const at::Tensor joined_K = dist::joined(counts, options.dtype(at::kLong));
  parts_.comm.all_reduce(joined_K, dist::ReduceOp::kMax)->wait();
  dist::take_apart(joined_K, counts);
}

}  // namespace lockstep::train
