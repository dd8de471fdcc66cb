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

/// Chooses the device of this rank; its kind is the same on all ranks (run.device). "cpu": CPUs.
/// "cuda": each rank on its own GPU (daemon/device/device_choice.h). "auto": GPUs if there is one
/// for each rank, otherwise CPUs, which is logged. On a host without an NVIDIA driver, auto opens
/// no CUDA library.
///
/// Collective over `control`. Throws on every rank: Error(kConfig) if cuda is requested and some
/// rank has no GPU, Error(kUnavailable) if a rank has no CUDA module.
at::Device agree_on_device(const std::string& wanted, const dist::ProcessInfo& process,
                           dist::Communicator& control);

/// Sets CUBLAS_WORKSPACE_CONFIG, which cuBLAS needs for equal bits from run to run. Only if
/// run.deterministic requests these and the environment does not set the variable. Does nothing for
/// run.device: cpu. Call it before CUDA starts.
void prepare_deterministic_gpu(const RunOptions& run);

/// Throws Error(kConfig) if this device cannot keep the promise of run.deterministic. That is
/// elastic on a GPU, where NCCL chooses the order of sums over ranks. It is also true with a
/// CUBLAS_WORKSPACE_CONFIG that allows cuBLAS other orders.
void require_device_keeps_promises(const RunOptions& run, at::Device device);

/// Sets up the memory of this rank's GPU as section `gpu` says. Call it before the first tensor on
/// the GPU. Rank 0 logs the GPUs of all ranks, and each rank warns of another process on its GPU.
/// Returns facts about the GPU and its memory. On CPUs returns nullopt: the section has no effect,
/// which is logged if it is set.
///
/// Collective over `control`. Throws on every rank: Error(kUnavailable) if the requested share is
/// not free, kConfig if some rank allocated GPU memory before.
std::optional<metrics::GpuFacts> set_up_gpu(const GpuOptions& options, at::Device device,
                                            dist::Communicator& control);

/// Chooses the settings that the run file leaves open in `sync` for this world
/// (dist::fit_bucket_bytes). prunes: true if the recipe prunes. Equal on all ranks.
void fit_to(at::Device device, const dist::ProcessInfo& process, bool prunes,
            dist::SyncOptions* sync);

/// Returns the current numbers of this process' CUDA allocator. The GPU must be set up. Any thread.
metrics::GpuUse gpu_use(int index);

}  // namespace lockstep::daemon
