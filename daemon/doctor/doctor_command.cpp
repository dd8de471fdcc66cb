#include "daemon/doctor/doctor_command.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "daemon/doctor/host_facts.h"
#include "daemon/launching/rank_program.h"
#include "daemon/launching/supervised_ranks.h"
#include "launch/mpirun/hosts.h"
#include "launch/mpirun/mpirun_command.h"
#include "launch/processes/child.h"
#include "launch/processes/process_tree.h"

// The host's checks run in this process. The ranks' checks run in real ranks under mpirun, because
// most faults appear only there.
namespace lockstep::daemon {
namespace {

constexpr int kDefaultRanks = 2;
constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::seconds kLimit{120};
constexpr double kGrace_s = 5;
constexpr size_t kMaxShownBytes = 600;

/// Waits for the child and returns its exit code. nullopt if it took too long and was killed.
std::optional<int> end_of(launch::Child* child, std::string* errors) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  std::optional<int> code;
  while (!(code = child->poll()) && std::chrono::steady_clock::now() < end) {
    *errors += child->read_errors();
    std::this_thread::sleep_for(kLook);
  }
  *errors += child->read_errors();
  if (!code) (void)launch::kill_descendants(kGrace_s);
  return code;
}

/// Runs the ranks, which print their own findings. Returns findings only for what they cannot
/// report.
std::vector<Finding> rank_findings(const DoctorOptions& options, const std::string& program) {
  launch::MpirunOptions mpirun{.num_ranks = options.num_ranks,
                               .program = {program, "doctor"},
                               .more = mpirun_arguments(),
                               .is_root = ::geteuid() == 0};
  mpirun.hosts = hosts_of(options.hosts);
  if (mpirun.num_ranks == 0)
    mpirun.num_ranks = mpirun.hosts.empty() ? kDefaultRanks : launch::num_slots(mpirun.hosts);
  std::string errors;
  std::optional<int> code;
  try {
    // So that a rank whose mpirun was killed does not survive.
    launch::adopt_orphans();
    launch::Child child(launch::mpirun_command(mpirun), {});
    code = end_of(&child, &errors);
  } catch (const Error& fault) {
    return {{Finding::kFault, "ranks", fault.what(), "see mpirun above"}};
  }
  if (code == 0) return {};
  const std::string how =
      code ? fmt::format("mpirun ended with {}", *code)
           : fmt::format("mpirun did not end within {} s and was killed", kLimit.count());
  return {{Finding::kFault, "ranks", fmt::format("{}: {}", how, errors.substr(0, kMaxShownBytes)),
           "correct what is said above; where a host cannot be reached, try ssh HOST true and a "
           "firewall's rules"}};
}

void print(const std::vector<Finding>& findings) {
  std::fputs(text_of(findings).c_str(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace

CommandResult doctor_command(const DoctorOptions& options) {
  const std::string program = rank_program(options.program);
  const std::vector<Finding> host = host_findings(program);
  print(host);
  if (exit_code_of(host) != 0) return {"no ranks are started until that is mended\n", 69};
  const std::vector<Finding> ranks = rank_findings(options, program);
  print(ranks);
  return {"", exit_code_of(ranks)};
}

}  // namespace lockstep::daemon
