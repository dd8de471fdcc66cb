#pragma once

#include "daemon/config/run_options.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// Configures the allocator of this process to keep freed memory and to use huge pages for large
/// tensors. Otherwise it would return pages to the system and request new ones in every step. Call
/// it before the first tensor and before other threads start. Settings of the environment take
/// precedence (MALLOC_MMAP_THRESHOLD_, THP_MEM_ALLOC_ENABLE and the like).
void keep_freed_memory();

/// Sets compute threads, core binding and determinism as the run file and the host say. Denormal
/// numbers are flushed to 0 (docs/numerics.md). Rank 0 logs the choice for its host. Ranks of one
/// host with the same affinity share its cores. Ranks that a launcher has bound to different cores
/// use all of their own cores. Collective over `control`.
void set_up_compute(const RunOptions& options, const dist::ProcessInfo& process,
                    dist::Communicator& control);

}  // namespace lockstep::daemon
