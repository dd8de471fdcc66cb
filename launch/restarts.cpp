#include "launch/restarts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::launch {
namespace {

constexpr int kMaxKillsInARow = 2;

/// True if `shown` contains the host. mpirun shows a host without its domain, n1 for n1.cluster.
bool names(const std::set<std::string>& shown, const std::string& host) {
  return shown.contains(host) || shown.contains(host.substr(0, host.find('.')));
}

}  // namespace

HostPool::HostPool(std::vector<Host> hosts, int num_ranks, int min_ranks)
    : hosts_(std::move(hosts)), num_ranks_(num_ranks), min_ranks_(min_ranks) {
  if (min_ranks_ > num_ranks_)
    throw Error(
        ExitCode::kUsage, "run",
        fmt::format("--min-ranks {} is above the number of ranks, {}", min_ranks_, num_ranks_));
  if (!hosts_.empty() && num_slots(hosts_) < num_ranks_)
    throw Error(ExitCode::kUsage, "run",
                fmt::format("-n {}: the hosts have {} slots, {}", num_ranks_, num_slots(hosts_),
                            host_list(hosts_)));
}

std::vector<std::string> HostPool::note(const std::set<std::string>& lost,
                                        const std::set<std::string>& killed_on) {
  std::vector<std::string> left_out;
  is_short_ = false;
  for (const Host& host : std::vector<Host>(hosts_)) {
    int& kills = kills_in_a_row_[host.name];
    // Only kills in consecutive starts count: a single one may be chance.
    kills = names(killed_on, host.name) ? kills + 1 : 0;
    if (!names(lost, host.name) && kills < kMaxKillsInARow) continue;
    // Better to try a bad host again than to give up the run.
    if (num_slots(hosts_) - host.slots < min_ranks_) {
      is_short_ = true;
      continue;
    }
    std::erase_if(hosts_, [&](const Host& one) { return one.name == host.name; });
    left_out.push_back(host.name);
  }
  return left_out;
}

int HostPool::num_ranks() const {
  return hosts_.empty() ? num_ranks_ : std::min(num_ranks_, num_slots(hosts_));
}

constexpr double kMaxPause_s = 30;

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
