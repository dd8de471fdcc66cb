#include "data/loader.h"

#include "data/read_ahead.h"

namespace lockstep::data {
namespace {

Batch load(const Dataset& dataset, const GlobalBatch& global, int rank, int world_size) {
  const auto num_samples = static_cast<int64_t>(global.indices.size());
  const Shard mine = shard_of(num_samples, rank, world_size);
  const std::span<const int64_t> indices =
      std::span(global.indices).subspan(mine.begin, mine.size());
  return {dataset.get(indices, global.epoch), num_samples, mine.begin};
}

}  // namespace

Loader::Loader(const Dataset& dataset, Sampler& sampler, int rank, int world_size,
               LoaderOptions options)
    : dataset_(dataset),
      sampler_(sampler),
      rank_(rank),
      world_size_(world_size),
      options_(options) {}

Loader::~Loader() = default;

Batch Loader::next() {
  if (options_.num_threads == 0) return load(dataset_, sampler_.next(), rank_, world_size_);
  const SamplerPosition position = sampler_.position();
  if (read_ahead_ == nullptr || read_ahead_->position() != position) {
    read_ahead_.reset();  // its threads end before others begin
    read_ahead_ = std::make_unique<ReadAhead<Batch>>(
        sampler_,
        [this](const GlobalBatch& global) { return load(dataset_, global, rank_, world_size_); },
        options_.num_threads, options_.prefetch_batches);
  }
  Batch batch = read_ahead_->next();
  sampler_.set_position(read_ahead_->position());
  return batch;
}

std::optional<int64_t> Loader::num_ready() const {
  return read_ahead_ ? std::optional(read_ahead_->num_ready()) : std::nullopt;
}

}  // namespace lockstep::data
