#pragma once

#include <string>
#include <vector>

#include "daemon/doctor/findings.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// One pair of ranks, measured alone, beside other pairs at the same time.
struct Link {
  int first = 0, second = 0;
  double latency_s = 0;          ///< of one number, one way
  double bandwidth_bytes_s = 0;  ///< of 4 MiB, one way
};

/// Every pair of up to 16 ranks; beyond that each rank with the next ones, at distances 1, 2, 4,
/// ... Equal on all ranks. Collective.
std::vector<Link> measure_links(dist::Communicator& control);

/// The same as findings, with hosts (`nodes_N`, by rank). One that is much slower than the middle
/// one of its kind (within a host, between hosts) is a note. Pure.
std::vector<Finding> link_findings(const std::vector<Link>& links,
                                   const std::vector<std::string>& nodes_N);

/// What the ranks see of each other: hosts, program and libraries, GPUs, links. A fault where they
/// could not train together. Equal on all ranks. Collective.
std::vector<Finding> world_findings(dist::Communicator& control, const dist::ProcessInfo& process,
                                    const std::string& mpi_version);

}  // namespace lockstep::daemon
