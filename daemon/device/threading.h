#pragma once

#include "daemon/config/run_options.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// Lets this process keep the memory that it frees, instead of giving it back and asking for fresh
/// pages in every step, and puts large tensors on huge pages. Before the first tensor, before other
/// threads. Settings of the environment (MALLOC_MMAP_THRESHOLD_, THP_MEM_ALLOC_ENABLE and the like)
/// win.
void keep_freed_memory();

/// Compute threads, cores and determinism, as the run file and the host say; numbers too small for
/// full digits count as 0 (docs/numerics.md); rank 0 logs what was
/// chosen on its host. Ranks of one host with the same affinity share its cores; where a launcher
/// gave each rank cores of its own, these are all it uses. Collective over `control`.
void set_up_compute(const RunOptions& options, const dist::ProcessInfo& process,
                    dist::Communicator& control);

}  // namespace lockstep::daemon
