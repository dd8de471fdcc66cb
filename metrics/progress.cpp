#include "metrics/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

// All rates are differences between two samples. Totals since the start would hide a slowdown.
namespace lockstep::metrics {
namespace {

constexpr std::chrono::milliseconds kBarInterval{250};
constexpr double kMiB = 1024 * 1024;

double seconds(Progress::Clock::time_point from, Progress::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

int64_t percent_done(const ProgressSample& sample) {
  return sample.num_steps > 0 ? 100 * sample.step / sample.num_steps : 0;
}

/// Returns the loss, or "-" if the step has none.
std::string loss_text(const ProgressSample& sample) {
  return sample.loss ? fmt::format("{:.4f}", *sample.loss) : "-";
}

}  // namespace

Progress::Progress(double every_s, int64_t first_step, Clock::time_point start)
    : every_s_(every_s), last_{start, {.step = first_step}}, before_(last_), last_bar_(start) {}

bool Progress::is_due(Clock::time_point now) const {
  return every_s_ > 0 && seconds(last_.when, now) >= every_s_;
}

bool Progress::bar_is_due(Clock::time_point now) const {
  return every_s_ > 0 && now - last_bar_ >= kBarInterval;
}

Progress::Speed Progress::speed(const Mark& from, const ProgressSample& sample,
                                Clock::time_point now) {
  // Avoids a division by zero if two lines come at the same moment.
  const double passed_s = std::max(seconds(from.when, now), 1e-9);
  const double steps_per_s = static_cast<double>(sample.step - from.sample.step) / passed_s;
  const auto steps_left = static_cast<double>(sample.num_steps - sample.step);
  return {static_cast<double>(sample.global_samples - from.sample.global_samples) / passed_s,
          steps_per_s > 0 ? steps_left / steps_per_s : std::numeric_limits<double>::infinity()};
}

std::string Progress::line(const ProgressSample& sample, Clock::time_point now) {
  const auto [samples_per_s, left_s] = speed(last_, sample, now);
  const double busy_s = std::max(sample.busy_s - last_.sample.busy_s, 1e-9);
  const double data_s = sample.data_s - last_.sample.data_s;
  const double allreduce_s = sample.allreduce_s - last_.sample.allreduce_s;
  before_ = std::exchange(last_, {now, sample});
  return fmt::format(
      "step {}/{} ({}%)  epoch {:.2f}  loss {}  lr {:.4g}  {:.0f} samples/s  data {:.0f}%  "
      "all-reduce {:.0f}%  sparsity {:.1f}%  {}ETA {}",
      sample.step, sample.num_steps, percent_done(sample), sample.epoch, loss_text(sample),
      sample.learning_rate, samples_per_s, 100 * data_s / busy_s, 100 * allreduce_s / busy_s,
      100 * sample.sparsity,
      sample.resident_bytes > 0 ? fmt::format("{:.0f} MiB  ", sample.resident_bytes / kMiB) : "",
      duration_text(left_s));
}

std::string Progress::bar(const ProgressSample& sample, Clock::time_point now) {
  last_bar_ = now;
  // From the line before the last one: a longer time makes the numbers steadier.
  const auto [samples_per_s, left_s] = speed(before_, sample, now);
  return with_bar(fmt::format("{}%  step {}/{}  loss {}  {:.0f} samples/s  ETA {}",
                              percent_done(sample), sample.step, sample.num_steps,
                              loss_text(sample), samples_per_s, duration_text(left_s)),
                  sample.step, sample.num_steps);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "?";
  const int64_t whole = std::llround(std::max(seconds, 0.0));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string with_bar(const std::string& line, int64_t step, int64_t num_steps, int width) {
  const int64_t filled =
      num_steps > 0 ? std::clamp<int64_t>(width * step / num_steps, 0, width) : 0;
  const auto cells = static_cast<size_t>(filled);
  return "[" + std::string(cells, '#') + std::string(static_cast<size_t>(width) - cells, '-') +
         "] " + line;
}

bool wants_colors(const std::function<const char*(const char*)>& variable) {
  const char* refused = variable("NO_COLOR");
  return refused == nullptr || *refused == '\0';
}

bool is_interactive(bool stderr_is_terminal,
                    const std::function<const char*(const char*)>& variable) {
  // Under a launcher, stderr belongs to several ranks.
  constexpr std::array kLaunchers = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                     "SLURM_PROCID", "TORCHELASTIC_RUN_ID"};
  const char* terminal = variable("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return stderr_is_terminal && !is_dumb &&
         std::none_of(kLaunchers.begin(), kLaunchers.end(),
                      [&](const char* name) { return variable(name) != nullptr; });
}

}  // namespace lockstep::metrics
