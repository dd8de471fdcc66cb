#include "launch/supervise/probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include <unistd.h>

#include "launch/mpirun/mpirun_command.h"
#include "launch/processes/process_tree.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds kLook{20};
constexpr double kProbeKill_s = 5;

}  // namespace

std::set<std::string> unreachable(const std::vector<Host>& hosts,
                                  const std::vector<std::string>& mpirun_arguments,
                                  const Child::Variables& variables, double limit_s) {
  std::vector<std::unique_ptr<Child>> probes;
  // Without ssh access or with a dead daemon, not even `true` ends.
  for (const Host& host : hosts)
    probes.push_back(std::make_unique<Child>(mpirun_command({.num_ranks = 1,
                                                             .hosts = {{host.name, 1}},
                                                             .program = {"true"},
                                                             .more = mpirun_arguments,
                                                             .is_root = ::geteuid() == 0}),
                                             variables));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  const auto is_going_on = [](const auto& probe) {
    // Read the output, so that a full pipe cannot block mpirun.
    (void)probe->read_errors();
    return !probe->poll();
  };
  while (std::any_of(probes.begin(), probes.end(), is_going_on) &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kLook);
  std::set<std::string> silent;
  for (size_t i = 0; i < hosts.size(); ++i)
    if (probes[i]->poll() != 0) silent.insert(hosts[i].name);
  // Probes of hosts that do not answer are still running.
  (void)kill_descendants(kProbeKill_s);
  return silent;
}

}  // namespace lockstep::launch
