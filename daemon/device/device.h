#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "daemon/config/gpu_options.h"
#include "daemon/config/run_options.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "dist/sync_options.h"
#include "metrics/gpu_metrics.h"

namespace lockstep::daemon {

/// Where the ranks compute, the same kind on all of them (run.device): "cpu"; "cuda": each on a GPU
/// of its own (daemon/device/device_choice.h); "auto": so if there is one for each rank, else on
/// CPUs, which the log says. On a host without an NVIDIA driver, auto opens no CUDA library.
///
/// Collective over `control`. Throws on every rank Error(kConfig) if cuda is wanted and some rank
/// has no GPU, Error(kUnavailable) if it lacks the CUDA module.
at::Device agree_on_device(const std::string& wanted, const dist::ProcessInfo& process,
                           dist::Communicator& control);

/// Before CUDA starts: what cuBLAS must be told for equal bits from run to run
/// (CUBLAS_WORKSPACE_CONFIG), where run.deterministic asks for them and the environment does not
/// say. Nothing for run.device: cpu.
void prepare_deterministic_gpu(const RunOptions& run);

/// Throws Error(kConfig) if what run.deterministic promises cannot be kept on this device: elastic
/// on a GPU, whose sums over ranks are in NCCL's order; true with a CUBLAS_WORKSPACE_CONFIG that
/// leaves cuBLAS free.
void require_device_keeps_promises(const RunOptions& run, at::Device device);

/// Divides the memory of this rank's GPU as the section `gpu` says, before the first tensor there;
/// rank 0 logs the GPUs of all ranks, and each rank warns of another process that computes on its
/// own. What the GPU is and may give; nothing on CPUs, where the
/// section has no effect, which the log says if it asks for something.
///
/// Collective over `control`. Throws on every rank Error(kUnavailable) if a share is not free,
/// kConfig if some rank took memory there before.
std::optional<metrics::GpuFacts> set_up_gpu(const GpuOptions& options, at::Device device,
                                            dist::Communicator& control);

/// Gives what the run file leaves open in `sync` the value that suits this world
/// (dist::fit_bucket_bytes). prunes: the recipe does. Equal on all ranks.
void fit_to(at::Device device, const dist::ProcessInfo& process, bool prunes,
            dist::SyncOptions* sync);

/// What the allocator of this process' GPU, which was set up, tells now; from any thread.
metrics::GpuUse gpu_use(int index);

}  // namespace lockstep::daemon
