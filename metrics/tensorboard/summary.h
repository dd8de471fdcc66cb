#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "metrics/tensorboard/event_file.h"

/// Summaries for TensorBoard from code anywhere in a run: a network, a loss, a hook, a callback.
/// They go to the default writer of the thread, as tf.summary's do: Lockstep sets that of the mode
/// (train or eval) around each iteration, on rank 0; elsewhere, and where the run file says
/// `summary.tensorboard: false`, nothing is written.
///
///     summary::scalar("attention/entropy", entropy);           // at the step under way
///     summary::mean_scalar("seconds", seconds);                // over all ranks; each calls it
namespace lockstep::summary {

/// Which steps are written.
struct RecordPolicy {
  int64_t every_n_steps = 1;  ///< those that it divides; 1: always
};

struct DefaultWriterOptions {
  metrics::EventFile* file = nullptr;  ///< outlives the scope; null: nothing is written here
  int64_t step = 0;                    ///< of calls that give none
  RecordPolicy policy;
  /// A collective call over the ranks of the loop; empty: there is one rank, or no place for it.
  std::function<double(double value)> mean_over_ranks;
  int world_size = 1;
};

/// While it lives, the default writer of this thread; then the one before it is. Threads: one.
class DefaultWriter {
 public:
  explicit DefaultWriter(DefaultWriterOptions options);
  ~DefaultWriter();
  DefaultWriter(const DefaultWriter&) = delete;
  DefaultWriter& operator=(const DefaultWriter&) = delete;

 private:
  const DefaultWriterOptions options_;
  const DefaultWriterOptions* const before_;
};

/// As the default writer so far, where only one rank runs the code that follows: without a mean.
DefaultWriterOptions of_this_rank_alone();

/// Whether a summary of `step` is written: there is a writer, and its policy takes the step. For
/// values that cost something to compute.
bool is_recorded(std::optional<int64_t> step = std::nullopt);

/// One record of this rank's value. `step`: that of the scope where there is none.
void scalar(std::string_view tag, double value, std::optional<int64_t> step = std::nullopt);
/// The mean of all ranks' values. Collective: each rank calls it, at the same place: hooks, and
/// callbacks that run on all ranks, of the training. Throws Error(kConfig) where the ranks may not
/// all be there: in an evaluation, in a callback of rank 0, and in the network or its loss, which a
/// rank computes as often as it has parts of a batch.
void mean_scalar(std::string_view tag, double value, std::optional<int64_t> step = std::nullopt);
/// How these values are distributed.
void histogram(std::string_view tag, std::span<const float> values,
               std::optional<int64_t> step = std::nullopt);
/// `pixels_HWC`: as metrics::image_of().
void image(std::string_view tag, std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
           int num_channels, std::optional<int64_t> step = std::nullopt);
/// `samples_TC`: as metrics::audio_of().
void audio(std::string_view tag, std::span<const float> samples_TC, double sample_rate_Hz,
           int num_channels, std::optional<int64_t> step = std::nullopt);
/// Shown as Markdown.
void text(std::string_view tag, std::string_view text, std::optional<int64_t> step = std::nullopt);

}  // namespace lockstep::summary
