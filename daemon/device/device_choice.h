#pragma once

#include <string>
#include <vector>

namespace lockstep::daemon {

/// What one rank can compute on.
struct VisibleGpus {
  int rank = 0;
  std::string node;              ///< host name
  std::vector<std::string> ids;  ///< of its GPUs, by CUDA's index in this rank: "GPU-..." or empty
  bool may_share = false;  ///< NCCL joins ranks on one GPU where it runs: see ranks_may_share()
};

/// Which GPU each rank takes.
struct GpuChoice {
  std::vector<int> index_N;  ///< by rank: CUDA's index in that rank; empty if there is a fault
  std::string fault;         ///< why there is no GPU for each rank, and what to do; else empty
};

/// Whether the environment has NCCL_MULTI_RANK_GPU_ENABLE=1, and NCCL, of this version ("2.30.7"),
/// heeds it: from 2.30 on. For tests on a machine with fewer GPUs than ranks, as ranks that share a
/// GPU slow each other down.
bool ranks_may_share(const std::string& nccl_version);

/// What a rank sees, for the others, without its rank; and the way back.
std::string text_of(const VisibleGpus& gpus);
VisibleGpus read_visible_gpus(int rank, const std::string& text);

/// One GPU for each rank, none for two, unless all may share. Of ranks that see the same GPUs in
/// the same order (a host whose GPUs all ranks see) the first takes index 0, the next 1, and so on:
/// a rank that sees GPUs of its own (Slurm's --gpus-per-task, CUDA_VISIBLE_DEVICES for each rank)
/// takes index 0; where all may share, the one after the last is the first again. Pure; `all_N` by
/// rank, equal on all ranks.
GpuChoice choose_gpus(const std::vector<VisibleGpus>& all_N);

/// What the environment calls the GPU with CUDA's index `index`: with CUDA_VISIBLE_DEVICES=2,3
/// index 0 is "2"; without it, the index itself. `visible_devices`: the variable, empty if unset.
std::string name_of_gpu(const std::string& visible_devices, int index);

}  // namespace lockstep::daemon
