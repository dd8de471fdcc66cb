#include "daemon/device/busy_gpus.h"

#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "base/log.h"
#include "base/process/shell.h"
#include "base/yaml/config_reader.h"
#include "daemon/config/key_names.h"

namespace lockstep::daemon {
namespace {

constexpr const char* kAsk =
    "timeout 5 nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory "
    "--format=csv,noheader,nounits 2>/dev/null";

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

}  // namespace

std::string text_of(const GpuProcess& process) {
  return fmt::format("process {} ({}, {} MiB)", process.pid, printable(process.name),
                     printable(process.memory_mib));
}

std::vector<GpuProcess> parse_gpu_processes(const std::string& text) {
  std::vector<GpuProcess> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(','), last = line.rfind(',');
    const size_t second = first == std::string::npos ? first : line.find(',', first + 1);
    // The process name may contain commas: the pid follows the first one, the memory the last.
    if (second == std::string::npos || second >= last) continue;
    const auto pid = parse_integer(trimmed(line.substr(first + 1, second - first - 1)));
    // Other lines are headings or messages of nvidia-smi.
    if (!pid) continue;
    const std::string command = trimmed(line.substr(second + 1, last - second - 1));
    all.push_back({.gpu_id = trimmed(line.substr(0, first)),
                   .pid = *pid,
                   .name = std::filesystem::path(command).filename().string(),
                   .memory_mib = trimmed(line.substr(last + 1))});
  }
  return all;
}

bool is_same_gpu(const std::string& a, const std::string& b) {
  const auto bare = [](std::string id) {
    std::erase(id, '-');
    return id;
  };
  return bare(a) == bare(b);
}

std::vector<GpuProcess> gpu_processes() {
  // The command has its own time limit: a broken driver must not block the start.
  const ShellResult said = run_in_shell(kAsk);
  return said.exit_code == 0 ? parse_gpu_processes(said.text) : std::vector<GpuProcess>();
}

void warn_of_busy_gpu(const std::string& gpu_id, const std::vector<GpuProcess>& processes,
                      const std::set<int64_t>& own_pids) {
  for (const GpuProcess& one : processes)
    if (is_same_gpu(one.gpu_id, gpu_id) && !own_pids.contains(one.pid))
      log::warning("start", fmt::format("{} is busy with {}: both get on more slowly, and memory "
                                        "may not be enough; end it, or give this rank another GPU "
                                        "(CUDA_VISIBLE_DEVICES)",
                                        one.gpu_id, text_of(one)));
}

}  // namespace lockstep::daemon
