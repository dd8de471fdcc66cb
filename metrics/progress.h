#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::metrics {

/// What a progress line tells.
struct ProgressSample {
  int64_t step = 0;
  int64_t num_steps = 0;  ///< at the end of the run
  double epoch = 0;
  std::optional<double> loss;
  double learning_rate = 0;
  double sparsity = 0;
  int64_t global_samples =
      0;  ///< trained on by all ranks of this process' world, since the process started
};

/// Says when a line is due and makes it; speed and time left are of the time since the line before.
/// Who calls prints.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// A line each `every_s` seconds; 0: none. `start` counts as a line at `first_step`.
  Progress(double every_s, int64_t first_step, Clock::time_point start = Clock::now());

  /// Cheap; ask at every step.
  bool is_due(Clock::time_point now = Clock::now()) const;
  /// "step 120/1500 (8%)  epoch 2.40  loss 0.3412  lr 0.05  9876 samples/s  sparsity 45.0%  ETA
  /// 1m32s"
  std::string line(const ProgressSample& sample, Clock::time_point now = Clock::now());

 private:
  double seconds_since_line(Clock::time_point now) const;

  const double every_s_;
  Clock::time_point last_line_;
  int64_t last_step_;
  int64_t last_samples_ = 0;
};

/// "45s", "1m32s", "2h05m", "3d04h"; "?" if not finite.
std::string duration_text(double seconds);

/// The line behind a bar of `width` cells, for a terminal: "[####----] step ...".
std::string with_bar(const std::string& line, int64_t step, int64_t num_steps, int width = 20);

/// Whether a person watches stderr: it is a terminal, TERM is not "dumb", and no launcher's
/// variable is set (under mpirun even a file looks like a terminal). `variable` is getenv.
bool is_interactive(bool stderr_is_terminal,
                    const std::function<const char*(const char*)>& variable);

}  // namespace lockstep::metrics
