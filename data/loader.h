#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "data/datasets/dataset.h"
#include "data/sampler.h"

namespace lockstep::data {

template <typename Item>
class ReadAhead;

/// This rank's part of one global batch.
struct Batch {
  Samples samples;                 ///< may hold 0 samples in an epoch's last batch
  int64_t global_num_samples = 0;  ///< over all ranks
  int64_t first_sample = 0;        ///< place of this rank's first sample in the global batch
};

/// What a loader does beside its caller.
struct LoaderOptions {
  int64_t num_threads = 0;       ///< 0: next() reads the samples itself
  int64_t prefetch_batches = 2;  ///< read ahead at most, by all threads together; 0: none
  /// Where samples will be computed on: for a GPU they are put into page-locked memory. They stay
  /// on the host.
  at::Device device = at::kCPU;
};

/// Takes global batches from the sampler and loads rank r's contiguous share of each. Threads read
/// batches ahead, in the sampler's order; the samples are the same with any number of them.
///
/// The sampler is where next() left it, however far the threads are: saves hold its position, and a
/// restore may change it between two calls. One caller at a time.
class Loader {
 public:
  /// The sampler outlives it. Threads whose source stands still at the end of the loader are left
  /// behind, with the data set.
  Loader(std::shared_ptr<const Dataset> dataset, Sampler& sampler, int rank, int world_size,
         LoaderOptions options = {});
  /// The data set outlives it too.
  Loader(const Dataset& dataset, Sampler& sampler, int rank, int world_size,
         LoaderOptions options = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Throws what Dataset::get throws, when the batch that it was thrown for is asked for; the
  /// loader is of no use then.
  Batch next() { return *next_unless({}); }
  /// The same, or nothing where `leaves` says so: it is asked now and then while threads still read
  /// the batch. The sampler has not moved then, and where it stands so again the next call waits
  /// for the same batch. Where next() reads the samples itself, nobody asks.
  std::optional<Batch> next_unless(const std::function<bool()>& leaves);
  /// The next batch as a rank has it that brings none of its samples; moves the sampler as next().
  Batch without_samples();

  SamplerPosition position() const { return sampler_.position(); }
  void go_back_to(const SamplerPosition& position) { sampler_.set_position(position); }

  /// Batches that threads have read ahead and that next() need not wait for; nothing where none
  /// reads ahead.
  std::optional<int64_t> num_ready() const;

 private:
  const std::shared_ptr<const Dataset> dataset_;
  Sampler& sampler_;
  const int rank_;
  const int world_size_;
  const LoaderOptions options_;
  const bool owns_data_;
  std::unique_ptr<ReadAhead<Batch>>
      read_ahead_;  ///< null before the first batch, and without threads
};

}  // namespace lockstep::data
