#include "launch/supervise/restarts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>

#include "base/error.h"

namespace lockstep::launch {
namespace {

constexpr double kMaxPause_s = 30;
/// Of these a process dies by a fault or for want of memory; of others because somebody asks for
/// it.
constexpr std::array kWorthAnotherTry{SIGKILL, SIGSEGV, SIGBUS, SIGABRT};

}  // namespace

bool is_worth_another_try(int exit_code) {
  if (exit_code == kLauncherFault || exit_code == static_cast<int>(ExitCode::kUnavailable) ||
      exit_code == static_cast<int>(ExitCode::kWatchdog))
    return true;
  return std::any_of(kWorthAnotherTry.begin(), kWorthAnotherTry.end(),
                     [&](int signal_number) { return exit_code == 128 + signal_number; });
}

std::optional<double> Restarts::next_pause_s(bool made_progress) {
  if (made_progress) in_a_row_ = 0;
  if (in_a_row_ >= max_in_a_row_) return std::nullopt;
  const double pause_s = in_a_row_ == 0 ? 0 : std::min(kMaxPause_s, std::exp2(in_a_row_ - 1));
  ++in_a_row_;
  ++count_;
  return pause_s;
}

}  // namespace lockstep::launch
