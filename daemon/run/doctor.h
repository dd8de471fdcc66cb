#pragma once

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/process_info.h"

/// Checks of `lockstep doctor` that ranks make together: links, programs and devices.
namespace lockstep::daemon {

/// One result of `lockstep doctor`.
struct Finding {
  enum Kind {
    kOk,
    kNote,   ///< runs work, but some are slower or impossible
    kFault,  ///< prevents any run
  };

  Kind kind = kOk;
  std::string what;       ///< subject: "/dev/shm"
  std::string text;       ///< result of the check
  std::string cure = {};  ///< what to do about it; empty if ok
};

/// Returns a line per finding that begins with "ok", "note" or "FAULT". A cure is on its own line.
std::string text_of(const std::vector<Finding>& findings);

/// Returns 0, or 69 if a finding is a fault.
int exit_code_of(const std::vector<Finding>& findings);

/// Measured connection of two ranks, while other pairs are measured at the same time.
struct Link {
  int first = 0, second = 0;
  double latency_s = 0;          ///< of a single number, one way
  double bandwidth_bytes_s = 0;  ///< of 4 MiB, one way
};

/// Measures every pair of up to 16 ranks. With more ranks, measures each rank with those at
/// distances 1, 2, 4, ... Equal on all ranks. Collective.
std::vector<Link> measure_links(dist::Communicator& control);

/// Turns measured links into findings that name the hosts (`nodes_N`, by rank). A link that is much
/// slower than the median of its kind (within a host, between hosts) becomes a note. Pure.
std::vector<Finding> link_findings(const std::vector<Link>& links,
                                   const std::vector<std::string>& nodes_N);

/// Compares what all ranks see: hosts, program and libraries, GPUs, links. A fault if they could
/// not train together. Equal on all ranks. Collective.
std::vector<Finding> world_findings(dist::Communicator& control, const dist::ProcessInfo& process,
                                    const std::string& mpi_version);

}  // namespace lockstep::daemon
