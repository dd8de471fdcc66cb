#include "launch/supervise/restarts.h"

#include <algorithm>
#include <cmath>

namespace lockstep::launch {
namespace {

constexpr double kMaxPause_s = 30;

}  // namespace

bool is_launcher_fault(int exit_code) { return exit_code == 1 || exit_code == 255; }

std::optional<double> Restarts::next_pause_s(bool made_progress) {
  // A run that makes progress may be restarted any number of times.
  if (made_progress) in_a_row_ = 0;
  if (in_a_row_ >= max_in_a_row_) return std::nullopt;
  const double pause_s = in_a_row_ == 0 ? 0 : std::min(kMaxPause_s, std::exp2(in_a_row_ - 1));
  ++in_a_row_;
  ++count_;
  return pause_s;
}

}  // namespace lockstep::launch
