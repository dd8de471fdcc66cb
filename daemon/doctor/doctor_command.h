#pragma once

#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// The command line of `lockstep doctor`.
struct DoctorOptions {
  int num_ranks = 0;    ///< 0: the hosts' slots, 2 without hosts
  std::string hosts;    ///< launch::parse_hosts(); empty: this host
  std::string program;  ///< what each rank runs; empty: the lockstepd beside this program
};

/// Looks at this host (daemon/doctor/host_facts.h), then starts ranks that look at each other
/// (daemon/doctor/links.h). Prints while it goes on. The exit code: 0, or 69 where something stops
/// a run.
CommandResult doctor_command(const DoctorOptions& options);

}  // namespace lockstep::daemon
