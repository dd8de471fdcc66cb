#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lockstep::daemon {

/// A process that computes on a GPU of this host.
struct GpuProcess {
  std::string gpu_id;  ///< "GPU-1f..."
  int64_t pid = 0;     ///< in a container it may count elsewhere
  std::string name;
  std::string memory_mib;  ///< digits, or what nvidia-smi says instead
};

/// "process 812 (python3, 12000 MiB)".
std::string text_of(const GpuProcess& process);

/// What `nvidia-smi` writes: a line "GPU-1f..., 812, python3, 12000" each; other lines are left
/// out.
std::vector<GpuProcess> parse_gpu_processes(const std::string& text);

/// CUDA's bytes of a UUID, as "GPU-1fa0...", and nvidia-smi's "GPU-1fa0-..." are one name.
bool is_same_gpu(const std::string& a, const std::string& b);

/// Of all GPUs, as nvidia-smi says within 5 s; none where it is not in PATH or does not answer.
std::vector<GpuProcess> gpu_processes();

/// Logs a warning for each process but `own_pids` that computes on this GPU.
void warn_of_busy_gpu(const std::string& gpu_id, const std::vector<GpuProcess>& processes,
                      const std::set<int64_t>& own_pids);

}  // namespace lockstep::daemon
