#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// The command line of `lockstep doctor`.
struct DoctorOptions {
  int num_ranks = 0;    ///< 0: the hosts' slots, 2 without hosts
  std::string hosts;    ///< launch::parse_hosts(); empty: this host
  std::string program;  ///< command of each rank; empty: the lockstepd next to this program
};

/// Checks this host (daemon/doctor/host_facts.h), then starts ranks that check each other
/// (daemon/doctor/links.h). Prints results as they arrive. Exit code: 0, or 69 if a finding
/// prevents runs.
CommandResult doctor_command(const DoctorOptions& options);

}  // namespace lockstep::daemon
