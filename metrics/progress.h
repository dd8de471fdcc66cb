#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::metrics {

/// Values of a progress line.
struct ProgressSample {
  int64_t step = 0;
  int64_t num_steps = 0;  ///< at the end of the run
  double epoch = 0;
  std::optional<double> loss;
  double learning_rate = 0;
  double sparsity = 0;
  /// Seconds so far: in steps; of these, waiting for data and in all-reduce.
  double busy_s = 0, data_s = 0, allreduce_s = 0;
  double resident_bytes = 0;   ///< memory of this process; 0: unknown
  int64_t global_samples = 0;  ///< by all ranks of this process' world, since the process started
};

/// Decides when a progress line is due and formats it; the caller prints. Speed, shares and time
/// left refer to the time since the previous line.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// Schedules a line every `every_s` seconds; 0: none. `start` counts as a line at `first_step`.
  Progress(double every_s, int64_t first_step, Clock::time_point start = Clock::now());

  /// Changes the interval, counted from the last line.
  void set_every(double every_s) { every_s_ = every_s; }
  /// True if a line is due. Cheap; call it at every step.
  bool is_due(Clock::time_point now = Clock::now()) const;
  /// Formats "step 120/1500 (8%)  epoch 2.40  loss 0.3412  lr 0.05  9876 samples/s  data 2%
  /// all-reduce 11%  sparsity 45.0%  212 MiB  ETA 1m32s".
  std::string line(const ProgressSample& sample, Clock::time_point now = Clock::now());

  /// True if a terminal's progress bar must be redrawn, four times a second.
  bool bar_is_due(Clock::time_point now = Clock::now()) const;
  /// Formats "[##------------------] 8%  step 120/1500  loss 0.3412  9876 samples/s  ETA 1m32s".
  /// Speed and time left refer to the time since the last line but one, so they do not flicker.
  std::string bar(const ProgressSample& sample, Clock::time_point now = Clock::now());

 private:
  /// Values at one moment.
  struct Mark {
    Clock::time_point when;
    ProgressSample sample;
  };
  struct Speed {
    double samples_per_s = 0, left_s = 0;
  };
  static Speed speed(const Mark& from, const ProgressSample& sample, Clock::time_point now);

  double every_s_;
  Mark last_, before_;
  Clock::time_point last_bar_;
};

/// "45s", "1m32s", "2h05m", "3d04h"; "?" if not finite.
std::string duration_text(double seconds);

/// Returns the line after a bar of `width` cells: "[####----] step ...".
std::string with_bar(const std::string& line, int64_t step, int64_t num_steps, int width = 20);

/// True if a person watches stderr: it is a terminal, TERM is not "dumb", and no launcher's
/// variable is set. Under mpirun even a file looks like a terminal. `variable` is getenv.
bool is_interactive(bool stderr_is_terminal,
                    const std::function<const char*(const char*)>& variable);

/// True unless NO_COLOR is set to any value (no-color.org).
bool wants_colors(const std::function<const char*(const char*)>& variable);

}  // namespace lockstep::metrics
