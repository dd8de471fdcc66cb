#include "metrics/tensorboard/summary.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

// The default writer is thread-local: a callback in another thread has none, and its summaries are
// ignored.
namespace lockstep::summary {
namespace {

/// Options of the current default writer.
thread_local const DefaultWriterOptions* t_now = nullptr;

/// Adds a value to the default writer's file. Only if is_recorded().
void write(std::string_view tag, std::optional<int64_t> step, metrics::SummaryValue value) {
  t_now->file->add(step.value_or(t_now->step), tag, std::move(value));
}

}  // namespace

DefaultWriter::DefaultWriter(DefaultWriterOptions options)
    : options_(std::move(options)), before_(std::exchange(t_now, &options_)) {}

DefaultWriter::~DefaultWriter() { t_now = before_; }

DefaultWriterOptions of_this_rank_alone() {
  if (t_now == nullptr) return {};
  DefaultWriterOptions alone = *t_now;
  alone.mean_over_ranks = nullptr;
  return alone;
}

bool is_recorded(std::optional<int64_t> step) {
  return t_now != nullptr && t_now->file != nullptr &&
         step.value_or(t_now->step) % t_now->policy.every_n_steps == 0;
}

void scalar(std::string_view tag, double value, std::optional<int64_t> step) {
  if (!is_recorded(step)) return;
  const metrics::Scalar one{tag, value};
  t_now->file->add(step.value_or(t_now->step), {&one, 1});
}

void mean_scalar(std::string_view tag, double value, std::optional<int64_t> step) {
  if (t_now == nullptr) return;
  if (t_now->world_size > 1 && !t_now->mean_over_ranks)
    throw Error(ExitCode::kConfig, "summary",
                fmt::format("mean_scalar('{}') must be called on every rank: call it in training, "
                            "in a hook or a callback that runs on all ranks, or call scalar()",
                            tag));
  // Checked on every rank, and before the collective: all ranks must come to the same decision.
  if (step.value_or(t_now->step) % t_now->policy.every_n_steps != 0) return;  // on every rank
  scalar(tag, t_now->mean_over_ranks ? t_now->mean_over_ranks(value) : value, step);
}

void histogram(std::string_view tag, std::span<const float> values, std::optional<int64_t> step) {
  if (is_recorded(step)) write(tag, step, metrics::histogram_of(values));
}

void image(std::string_view tag, std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
           int num_channels, std::optional<int64_t> step) {
  if (is_recorded(step))
    write(tag, step, metrics::image_of(pixels_HWC, height, width, num_channels));
}

void audio(std::string_view tag, std::span<const float> samples_TC, double sample_rate_Hz,
           int num_channels, std::optional<int64_t> step) {
  if (is_recorded(step))
    write(tag, step, metrics::audio_of(samples_TC, sample_rate_Hz, num_channels));
}

void text(std::string_view tag, std::string_view text, std::optional<int64_t> step) {
  if (is_recorded(step)) write(tag, step, metrics::TextSummary{std::string(text)});
}

}  // namespace lockstep::summary
