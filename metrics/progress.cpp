#include "metrics/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

namespace lockstep::metrics {

Progress::Progress(double every_s, int64_t first_step, Clock::time_point start)
    : every_s_(every_s), last_line_(start), last_step_(first_step) {}

double Progress::seconds_since_line(Clock::time_point now) const {
  return std::chrono::duration<double>(now - last_line_).count();
}

bool Progress::is_due(Clock::time_point now) const {
  return every_s_ > 0 && seconds_since_line(now) >= every_s_;
}

std::string Progress::line(const ProgressSample& sample, Clock::time_point now) {
  const double passed_s = std::max(seconds_since_line(now), 1e-9);
  const double steps_per_s = static_cast<double>(sample.step - last_step_) / passed_s;
  const double samples_per_s =
      static_cast<double>(sample.global_samples - last_samples_) / passed_s;
  const double left_s = steps_per_s > 0
                            ? static_cast<double>(sample.num_steps - sample.step) / steps_per_s
                            : std::numeric_limits<double>::infinity();
  last_line_ = now;
  last_step_ = sample.step;
  last_samples_ = sample.global_samples;
  return fmt::format(
      "step {}/{} ({}%)  epoch {:.2f}  loss {}  lr {:.4g}  {:.0f} samples/s  sparsity {:.1f}%  ETA "
      "{}",
      sample.step, sample.num_steps,
      sample.num_steps > 0 ? 100 * sample.step / sample.num_steps : 0, sample.epoch,
      sample.loss ? fmt::format("{:.4f}", *sample.loss) : "-", sample.learning_rate, samples_per_s,
      100 * sample.sparsity, duration_text(left_s));
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

bool is_interactive(bool stderr_is_terminal,
                    const std::function<const char*(const char*)>& variable) {
  constexpr std::array kLaunchers = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                     "SLURM_PROCID", "TORCHELASTIC_RUN_ID"};
  const char* terminal = variable("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return stderr_is_terminal && !is_dumb &&
         std::none_of(kLaunchers.begin(), kLaunchers.end(),
                      [&](const char* name) { return variable(name) != nullptr; });
}

}  // namespace lockstep::metrics
