#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "metrics/tensorboard/event_file.h"

/// Summaries for TensorBoard from any code in a run: a network, a loss, a hook, a callback. They go
/// to the thread's default writer, as with tf.summary. Lockstep sets the writer of the mode (train
/// or eval) around each iteration, on rank 0. On other ranks, and with `summary.tensorboard:
/// false`, nothing is written.
///
///     summary::scalar("attention/entropy", entropy);           // at the step under way
///     summary::mean_scalar("seconds", seconds);                // over all ranks; each calls it
namespace lockstep::summary {

/// Selects the steps to write.
struct RecordPolicy {
  int64_t every_n_steps = 1;  ///< writes the steps that are multiples of it; 1: all
};

struct DefaultWriterOptions {
  metrics::EventFile* file = nullptr;  ///< outlives the scope; null: nothing is written
  int64_t step = 0;                    ///< used if a call gives no step
  RecordPolicy policy;
  /// Collective mean over the ranks of the loop; empty: a single rank, or not available here.
  std::function<double(double value)> mean_over_ranks;
  int world_size = 1;
};

/// Scope of a default writer of this thread; its end restores the previous one. Threads: one.
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

/// Returns the current default writer's options without a mean, for code that only one rank runs.
DefaultWriterOptions of_this_rank_alone();

/// True if a summary of `step` will be written: a writer exists and its policy selects the step.
/// Check it before computing an expensive value.
bool is_recorded(std::optional<int64_t> step = std::nullopt);

/// Records this rank's value. `step`: default is the scope's step.
void scalar(std::string_view tag, double value, std::optional<int64_t> step = std::nullopt);
/// Records the mean of all ranks' values. Collective: each rank calls it at the same place in the
/// training, in hooks and in callbacks that run on all ranks. Throws Error(kConfig) where some
/// ranks may be absent: in an evaluation and in a callback of rank 0. Also in the network or its
/// loss, which a rank computes once per part of its batch.
void mean_scalar(std::string_view tag, double value, std::optional<int64_t> step = std::nullopt);
/// Records the distribution of these values.
void histogram(std::string_view tag, std::span<const float> values,
               std::optional<int64_t> step = std::nullopt);
/// Records an image. `pixels_HWC`: see metrics::image_of().
void image(std::string_view tag, std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
           int num_channels, std::optional<int64_t> step = std::nullopt);
/// Records a sound. `samples_TC`: see metrics::audio_of().
void audio(std::string_view tag, std::span<const float> samples_TC, double sample_rate_Hz,
           int num_channels, std::optional<int64_t> step = std::nullopt);
/// Records a text, shown as Markdown.
void text(std::string_view tag, std::string_view text, std::optional<int64_t> step = std::nullopt);

}  // namespace lockstep::summary
