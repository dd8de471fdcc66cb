// The sampler that read-ahead threads use is a copy. next() moves the real one only when a batch is
// delivered.
#include "data/loader.h"

#include <utility>

#include "base/device/to_device.h"
#include "data/read_ahead.h"

namespace lockstep::data {
namespace {

Batch load(const Dataset& dataset, const GlobalBatch& global, int rank, int world_size,
           at::Device device) {
  const auto num_samples = static_cast<int64_t>(global.indices.size());
  const Shard mine = shard_of(num_samples, rank, world_size);
  const std::span<const int64_t> indices =
      std::span(global.indices).subspan(mine.begin, mine.size());
  // Each rank reads only its own share, so no rank waits for the reads of another.
  Samples samples = dataset.get(indices, global.epoch);
  samples.inputs_BX = pinned_for(device, samples.inputs_BX);
  samples.targets_BY = pinned_for(device, samples.targets_BY);
  return {std::move(samples), num_samples, mine.begin};
}

}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, Sampler& sampler, int rank, int world_size,
               LoaderOptions options)
    : dataset_(std::move(dataset)),
      sampler_(sampler),
      rank_(rank),
      world_size_(world_size),
      options_(options),
      // False if the caller owns the data set: it may be gone before a left thread ends.
      owns_data_(dataset_.use_count() > 0) {}

Loader::Loader(const Dataset& dataset, Sampler& sampler, int rank, int world_size,
               LoaderOptions options)
    : Loader(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &dataset), sampler, rank,
             world_size, options) {}

Loader::~Loader() = default;

std::optional<Batch> Loader::next_unless(const std::function<bool()>& leaves) {
  if (options_.num_threads == 0)
    return load(*dataset_, sampler_.next(), rank_, world_size_, options_.device);
  const SamplerPosition position = sampler_.position();
  if (read_ahead_ == nullptr || read_ahead_->position() != position) {
    read_ahead_.reset();  // the sampler was moved (a restore): what was read ahead is useless
    const auto load_one = [dataset = dataset_, rank = rank_, world_size = world_size_,
                           device = options_.device](const GlobalBatch& global) {
      return load(*dataset, global, rank, world_size, device);
    };
    read_ahead_ = std::make_unique<ReadAhead<Batch>>(sampler_, load_one, options_.num_threads,
                                                     options_.prefetch_batches,
                                                     /*may_leave_threads=*/owns_data_);
  }
  std::optional<Batch> batch = read_ahead_->next_unless(leaves);
  if (batch) sampler_.set_position(read_ahead_->position());
  return batch;
}

Batch Loader::without_samples() {
  const auto num_samples = static_cast<int64_t>(sampler_.next().indices.size());
  return {no_samples(dataset_->spec()), num_samples,
          shard_of(num_samples, rank_, world_size_).begin};
}

std::optional<int64_t> Loader::num_ready() const {
  const bool reads_ahead = read_ahead_ != nullptr && options_.prefetch_batches > 0;
  return reads_ahead ? std::optional(read_ahead_->num_ready()) : std::nullopt;
}

}  // namespace lockstep::data
