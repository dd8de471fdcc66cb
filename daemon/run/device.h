#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "daemon/config/run_options.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "metrics/training_metrics.h"

/// Device of each rank: choice of GPUs, other processes on a GPU, memory, threads.
namespace lockstep::daemon {

/// True on Linux with an NVIDIA driver, or in WSL (/dev/dxg).
bool has_nvidia_driver();

/// GPUs that one rank can use.
struct VisibleGpus {
  int rank = 0;
  std::string node;              ///< host name
  std::vector<std::string> ids;  ///< UUIDs by CUDA's index in this rank: "GPU-..." or empty
  bool may_share = false;        ///< NCCL allows several ranks on one GPU: see ranks_may_share()
};

/// GPU of each rank.
struct GpuChoice {
  std::vector<int> index_N;  ///< by rank: CUDA's index in that rank; empty if there is a fault
  std::string fault;         ///< why there is no GPU for each rank, and what to do; else empty
};

/// True if NCCL allows several ranks on one GPU: NCCL_MULTI_RANK_GPU_ENABLE=1 is set, and this NCCL
/// version ("2.30.7") supports it, from 2.30 on. Meant for tests on a machine with fewer GPUs than
/// ranks. Ranks that share a GPU slow each other down.
bool ranks_may_share(const std::string& nccl_version);

/// Encodes a rank's GPUs, without its rank, as text for the other ranks; and decodes it.
std::string text_of(const VisibleGpus& gpus);
VisibleGpus read_visible_gpus(int rank, const std::string& text);

/// Returns the GPUs of this rank, given their ids.
VisibleGpus visible_gpus(const std::string& node, const std::vector<std::string>& ids);
/// Gathers the GPUs of all ranks, by rank. Collective.
std::vector<VisibleGpus> gather_visible_gpus(dist::Communicator& control, const VisibleGpus& own);

/// Assigns one GPU to each rank, and no GPU to two ranks unless all may share. Pure; `all_N` is
/// ordered by rank and equal on all ranks.
///
/// Ranks that see the same GPUs in the same order (all GPUs of a host) take index 0, 1, and so on.
/// If all may share, the index after the last is 0 again. A rank that sees only its own GPUs takes
/// index 0 (Slurm's --gpus-per-task, or CUDA_VISIBLE_DEVICES for each rank).
GpuChoice choose_gpus(const std::vector<VisibleGpus>& all_N);

/// Returns the environment's name of the GPU with CUDA's index `index`. With
/// CUDA_VISIBLE_DEVICES=2,3 index 0 is "2"; without it, the index itself. `visible_devices`: value
/// of the variable, empty if unset.
std::string name_of_gpu(const std::string& visible_devices, int index);

/// A process that computes on a GPU of this host.
struct GpuProcess {
  std::string gpu_id;  ///< "GPU-1f..."
  int64_t pid = 0;     ///< may differ inside a container, which counts its own
  std::string name;
  std::string memory_mib;  ///< digits, or nvidia-smi's text if unknown
};

/// Returns "process 812 (python3, 12000 MiB)".
std::string text_of(const GpuProcess& process);

/// True if both names are the same GPU: CUDA's bytes of a UUID, "GPU-1fa0...", and nvidia-smi's
/// "GPU-1fa0-...".
bool is_same_gpu(const std::string& a, const std::string& b);

/// Returns the processes of all GPUs. Empty if nvidia-smi is not in PATH or does not answer within
/// 5 s.
std::vector<GpuProcess> gpu_processes();

/// Chooses the device of this rank; its kind is the same on all ranks (run.device). "cpu": CPUs.
/// "cuda": each rank on its own GPU (choose_gpus). "auto": GPUs if there is one for each rank,
/// otherwise CPUs, which is logged. On a host without an NVIDIA driver, auto opens no CUDA library.
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

/// Returns the current numbers of this process' CUDA allocator. The GPU must be set up. Any thread.
metrics::GpuUse gpu_use(int index);

/// Configures the allocator of this process to keep freed memory and to use huge pages for large
/// tensors. Otherwise it would return pages to the system and request new ones in every step. Call
/// it before the first tensor and before other threads start. Settings of the environment take
/// precedence (MALLOC_MMAP_THRESHOLD_, THP_MEM_ALLOC_ENABLE and the like).
void keep_freed_memory();

/// Sets compute threads, core binding and determinism as the run file and the host say. Denormal
/// numbers are flushed to 0 (docs/design/numerics.md). Rank 0 logs the choice for its host. Ranks
/// of one host with the same affinity share its cores. Ranks that a launcher has bound to different
/// cores use all of their own cores. Collective over `control`.
void set_up_compute(const RunOptions& options, const dist::ProcessInfo& process,
                    dist::Communicator& control);

/// Sets up threads and device as a run would, in a world of one rank. Call it before the first
/// tensor. Returns the device.
at::Device set_up_alone(const RunOptions& run, const GpuOptions& gpu);

}  // namespace lockstep::daemon
