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

/// Of these it dies because it was told to end.
constexpr std::array kOfAStop{SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGUSR1};

bool is_by_one_of(const auto& signals, int exit_code) {
  return std::any_of(signals.begin(), signals.end(),
                     [&](int signal_number) { return exit_code == 128 + signal_number; });
}

}  // namespace

bool is_launcher_fault(int exit_code) { return exit_code == 1 || exit_code == 255; }

bool is_end_by_a_stop(int exit_code) {
  return is_launcher_fault(exit_code) || exit_code == static_cast<int>(ExitCode::kUnavailable) ||
         is_by_one_of(kOfAStop, exit_code);
}

bool is_worth_another_try(int exit_code) {
  if (is_launcher_fault(exit_code) || exit_code == static_cast<int>(ExitCode::kUnavailable) ||
      exit_code == static_cast<int>(ExitCode::kWatchdog))
    return true;
  return is_by_one_of(kWorthAnotherTry, exit_code);
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
