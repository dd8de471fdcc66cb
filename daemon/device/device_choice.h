#pragma once

#include <string>
#include <vector>

namespace lockstep::daemon {

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

}  // namespace lockstep::daemon
