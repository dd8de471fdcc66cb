#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "data/dataset.h"
#include "data/sampler.h"

namespace lockstep::data {

class ReadAhead;

/// One rank's part of one global batch.
struct Batch {
  Samples samples;                 ///< may be empty in an epoch's last batch
  int64_t global_num_samples = 0;  ///< over all ranks
  int64_t first_sample = 0;        ///< position of this rank's first sample in the global batch
  int rank = 0;                    ///< whose part it is
};

/// Threads and read-ahead of a loader.
struct LoaderOptions {
  int64_t num_threads = 0;       ///< 0: next() reads the samples itself
  int64_t prefetch_batches = 2;  ///< limit of batches read ahead by all threads together; 0: none
  /// Device that will compute on the samples. For a GPU they are put into page-locked host memory.
  at::Device device = at::kCPU;
};

/// Loads this rank's contiguous share of each of the sampler's global batches. Threads read batches
/// ahead in the sampler's order. The samples do not depend on the number of threads.
///
/// The sampler's position is always where next() left it, however far ahead the threads are.
/// Checkpoints store this position, and a restore may change it between two calls. One caller at a
/// time.
class Loader {
 public:
  /// The sampler must outlive the loader. If a thread's source hangs when the loader ends, that
  /// thread is left behind with the data set.
  Loader(std::shared_ptr<const Dataset> dataset, Sampler& sampler, int rank, int world_size,
         LoaderOptions options = {});
  /// The data set must outlive the loader too, so no thread is left behind.
  Loader(const Dataset& dataset, Sampler& sampler, int rank, int world_size,
         LoaderOptions options = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next batch. Throws what Dataset::get threw for it; the loader is unusable then.
  Batch next() { return *next_unless({}); }
  /// Returns the next batch, or nullopt if `leaves` returns true. `leaves` is called now and then
  /// while threads still read the batch. On nullopt the sampler has not moved, and the next call
  /// waits for the same batch. If next() reads the samples itself, `leaves` is not called.
  std::optional<Batch> next_unless(const std::function<bool()>& leaves);
  /// Returns the next batch for a rank that contributes no samples; moves the sampler like next().
  Batch without_samples();

  SamplerPosition position() const { return sampler_.position(); }
  void go_back_to(const SamplerPosition& position) { sampler_.set_position(position); }

  /// Returns the number of batches that are read ahead and ready; nullopt without read-ahead.
  std::optional<int64_t> num_ready() const;

 private:
  const std::shared_ptr<const Dataset> dataset_;
  Sampler& sampler_;
  const int rank_;
  const int world_size_;
  const LoaderOptions options_;
  const bool owns_data_;
  std::unique_ptr<ReadAhead> read_ahead_;  ///< null before the first batch, and without threads
};

}  // namespace lockstep::data
