// The order of an epoch is computed when it is first needed and kept until the next epoch.
#include "data/sampler.h"

#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "base/random.h"

namespace lockstep::data {
namespace {

/// Stream of the sampler's random numbers, which separates them from others with the same seed.
constexpr int64_t kOrderStream = 3;

}  // namespace

Shard shard_of(int64_t count, int64_t part, int64_t num_parts) {
  return {count * part / num_parts, count * (part + 1) / num_parts};
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  check(options.num_samples > 0 && options.global_batch_size > 0,
        "a sampler needs samples and a batch size");
  if (end_of_epoch() == 0)
    throw Error(
        ExitCode::kConfig, "data",
        fmt::format(
            "data.drop_last leaves no batch: {} samples are fewer than one global batch of {}",
            options.num_samples, options.global_batch_size));
}

int64_t Sampler::end_of_epoch() const {
  // With drop_last the epoch ends before its partial batch.
  return options_.drop_last
             ? options_.num_samples - options_.num_samples % options_.global_batch_size
             : options_.num_samples;
}

int64_t Sampler::steps_per_epoch() const {
  return (end_of_epoch() + options_.global_batch_size - 1) / options_.global_batch_size;
}

const std::vector<int64_t>& Sampler::order_of(int64_t epoch) {
  if (order_epoch_ == epoch) return order_;
  order_.resize(static_cast<size_t>(options_.num_samples));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  const CounterRandom random{options_.seed, kOrderStream, epoch};
  // Fisher-Yates with one counter value per position: any rank can compute it alone.
  for (size_t i = order_.size() - 1; options_.shuffle && i > 0; --i)
    std::swap(order_[i], order_[random.below(i, i + 1)]);
  order_epoch_ = epoch;
  return order_;
}

GlobalBatch Sampler::next() {
  if (position_ >= end_of_epoch()) {
    position_ = 0;
    ++epoch_;
  }
  const std::vector<int64_t>& order = order_of(epoch_);
  const int64_t end = std::min(position_ + options_.global_batch_size, end_of_epoch());
  GlobalBatch batch{epoch_, {order.begin() + position_, order.begin() + end}};
  position_ = end;
  return batch;
}

StateList Sampler::state() {
  return {{"_lockstep/sampler/epoch", view_of(&epoch_), nullptr},
          {"_lockstep/sampler/position", view_of(&position_), nullptr}};
}

}  // namespace lockstep::data
