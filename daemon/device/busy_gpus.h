#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lockstep::daemon {

/// A process that computes on a GPU of this host.
struct GpuProcess {
  std::string gpu_id;  ///< "GPU-1f..."
  int64_t pid = 0;     ///< may differ inside a container, which counts its own
  std::string name;
  std::string memory_mib;  ///< digits, or nvidia-smi's text if unknown
};

/// Returns "process 812 (python3, 12000 MiB)".
std::string text_of(const GpuProcess& process);

/// Parses the output of `nvidia-smi`: lines of the form "GPU-1f..., 812, python3, 12000". Other
/// lines are skipped.
std::vector<GpuProcess> parse_gpu_processes(const std::string& text);

/// True if both names are the same GPU: CUDA's bytes of a UUID, "GPU-1fa0...", and nvidia-smi's
/// "GPU-1fa0-...".
bool is_same_gpu(const std::string& a, const std::string& b);

/// Returns the processes of all GPUs. Empty if nvidia-smi is not in PATH or does not answer within
/// 5 s.
std::vector<GpuProcess> gpu_processes();

/// Logs a warning for each process on this GPU that is not in `own_pids`.
void warn_of_busy_gpu(const std::string& gpu_id, const std::vector<GpuProcess>& processes,
                      const std::set<int64_t>& own_pids);

}  // namespace lockstep::daemon
