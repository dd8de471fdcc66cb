#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/tensor_commands.h"
#include "daemon/config/program.h"
#include "daemon/run/device.h"
#include "daemon/run/doctor.h"
#include "dist/nccl/load_nccl.h"
#include "launch/mpirun.h"
#include "launch/processes.h"
#include "launch/ranks.h"

// `lockstep doctor`: facts about this host, and the start of ranks that check each other.
namespace lockstep::cli {

using daemon::Finding;

// One function per fact. Each returns a finding instead of throwing, so that one fault does not
// hide the others.

namespace {

constexpr double kGib = 1 << 30;
/// Minimum of free shared memory, through which ranks of a host exchange. Containers get 64 MiB by
/// default.
constexpr double kLeastShm_bytes = 256.0 * (1 << 20);

/// Runs a command and returns its stdout and stderr.
ShellResult run(const std::string& command) { return run_in_shell(command + " 2>&1"); }

/// Returns the first line that contains `part`; without one, the first line.
std::string line_with(const std::string& text, const std::string& part) {
  for (const std::string& line : split(text))
    if (line.find(part) != std::string::npos) return line;
  return text.substr(0, text.find('\n'));
}

Finding version() {
  const daemon::VersionFacts facts = daemon::version_facts();
  return {Finding::kOk, "lockstep",
          fmt::format("{} (commit {}), LibTorch {}", facts.version, facts.commit, facts.torch)};
}

Finding cores() {
  const std::vector<Core> all = allowed_cores();
  const std::optional<double> quota = cgroup_limits().cores;  // for all its ranks together
  return {all.empty() ? Finding::kNote : Finding::kOk, "cores",
          fmt::format("{} that this process may use", all.size()) +
              (quota ? fmt::format(", CPU quota of the container: {:g}", *quota) : ""),
          all.empty() ? "check the CPU affinity set by the launcher" : ""};
}

Finding memory() {
  const std::string text =
      fmt::format("{:.1f} GiB", static_cast<double>(usable_memory_bytes()) / kGib);
  return {Finding::kOk, "memory",
          text + (cgroup_limits().memory_bytes ? ", the limit of the container" : "")};
}

Finding shared_memory() {
  struct statvfs facts {};
  if (::statvfs("/dev/shm", &facts) != 0)
    return {Finding::kNote, "/dev/shm", "does not exist",
            "mount a tmpfs at /dev/shm: ranks of a host exchange data through it"};
  const double block = static_cast<double>(facts.f_frsize);
  const double total = block * static_cast<double>(facts.f_blocks);
  const double free = block * static_cast<double>(facts.f_bavail);
  const std::string text = fmt::format("{:.2f} GiB, {:.2f} free", total / kGib, free / kGib);
  if (free >= kLeastShm_bytes) return {Finding::kOk, "/dev/shm", text};
  return {Finding::kNote, "/dev/shm", text,
          "enlarge it (docker run --shm-size 1g; in Kubernetes an emptyDir of medium Memory), or "
          "remove files of ended programs; otherwise ranks exchange data more slowly"};
}

Finding temporary_folder() {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(ignored);
  try {
    files::require_writable(folder);
    return {Finding::kOk, "temporary folder", folder.string()};
  } catch (const Error& fault) {
    return {Finding::kFault, "temporary folder", fault.what(),
            "set TMPDIR to a folder that this user may write to: mpirun and its ranks need one"};
  }
}

Finding mpirun() {
  const ShellResult said = run("mpirun --version");
  // 127: the shell found no such command.
  if (said.exit_code == 127)
    return {Finding::kFault, "mpirun", "is not in PATH",
            "install Open MPI (Debian: openmpi-bin), or add its folder to PATH"};
  if (said.text.find("Open MPI") == std::string::npos)
    return {Finding::kFault, "mpirun", line_with(said.text, ""),
            "put Open MPI's mpirun first in PATH: the programs are linked with its library"};
  return {Finding::kOk, "mpirun", line_with(said.text, "Open MPI")};
}

Finding srun() {
  const ShellResult said = run("srun --version");
  if (said.exit_code == 127) return {Finding::kOk, "srun", "is not in PATH: no Slurm on this host"};
  // srun without a cluster still prints its version or an error; either is informative.
  const std::string text = line_with(said.text, "");
  if (said.exit_code != 0)
    return {Finding::kOk, "srun", "is installed, but this host is in no cluster: " + text};
  return {Finding::kOk, "srun", text};
}

Finding ssh() {
  const ShellResult said = run("ssh -V");
  if (said.exit_code != 127) return {Finding::kOk, "ssh", line_with(said.text, "")};
  return {Finding::kNote, "ssh", "is not in PATH",
          "install it (Debian: openssh-client) for ranks on several hosts"};
}

/// Checks the program of the ranks and its libraries.
void add_rank_program(const std::string& program, std::vector<Finding>* found) {
  const ShellResult said = run(shell_quoted(program) + " --version");
  if (said.exit_code != 0) {
    found->push_back({Finding::kFault, "lockstepd",
                      fmt::format("{}: {}", program, line_with(said.text, "")),
                      "fix the reported error, or name another program with --program"});
    return;
  }
  const char* what = "lockstepd";
  for (const std::string& line : split(said.text))
    if (!line.empty()) found->push_back({Finding::kOk, std::exchange(what, ""), line});
  // Ranks of another build may behave differently from this tool.
  if (said.text.find(daemon::version_facts().commit) == std::string::npos)
    found->push_back({Finding::kNote, "lockstepd", "is from another build than this program",
                      "use both from the same build"});
}

Finding gpus() {
  if (!daemon::has_nvidia_driver())
    return {Finding::kOk, "GPUs", "no NVIDIA driver: ranks use CPUs"};
  try {
    const std::vector<std::string> ids = dist::nccl_device_ids();
    if (!ids.empty())
      return {
          Finding::kOk, "GPUs",
          fmt::format("{}, NCCL {}: {}", ids.size(), dist::nccl_version(), fmt::join(ids, ", "))};
    return {Finding::kNote, "GPUs", "the driver is installed, but this process may use no GPU",
            "check CUDA_VISIBLE_DEVICES and nvidia-smi; ranks use CPUs"};
  } catch (const Error& fault) {
    return {Finding::kNote, "GPUs", fault.what(),
            "install the missing software (docs/gpus.md); until then ranks use CPUs"};
  }
}

// The host's checks run in this process. The ranks' checks run in real ranks under mpirun, because
// most faults appear only there.

constexpr int kDefaultRanks = 2;
constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::seconds kLimit{120};
constexpr double kGrace_s = 5;
constexpr size_t kMaxShownBytes = 600;

/// Waits for the child and returns its exit code. nullopt if it took too long and was killed.
std::optional<int> end_of(launch::Child* child, std::string* errors) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  std::optional<int> code;
  while (!(code = child->poll()) && std::chrono::steady_clock::now() < end) {
    *errors += child->read_errors();
    std::this_thread::sleep_for(kLook);
  }
  *errors += child->read_errors();
  if (!code) (void)launch::kill_descendants(kGrace_s);
  return code;
}

/// Runs the ranks, which print their own findings. Returns findings only for what they cannot
/// report.
std::vector<Finding> rank_findings(const DoctorOptions& options, const std::string& program) {
  launch::MpirunOptions mpirun{.num_ranks = options.num_ranks,
                               .program = {program, "doctor"},
                               .more = launch::mpirun_arguments(),
                               .is_root = ::geteuid() == 0};
  mpirun.hosts = launch::hosts_of(options.hosts);
  if (mpirun.num_ranks == 0)
    mpirun.num_ranks = mpirun.hosts.empty() ? kDefaultRanks : launch::num_slots(mpirun.hosts);
  std::string errors;
  std::optional<int> code;
  try {
    // So that a rank whose mpirun was killed does not survive.
    launch::adopt_orphans();
    launch::Child child(launch::mpirun_command(mpirun), {});
    code = end_of(&child, &errors);
  } catch (const Error& fault) {
    return {{Finding::kFault, "ranks", fault.what(), "see mpirun above"}};
  }
  if (code == 0) return {};
  const std::string how =
      code ? fmt::format("mpirun ended with {}", *code)
           : fmt::format("mpirun did not end within {} s and was killed", kLimit.count());
  return {{Finding::kFault, "ranks", fmt::format("{}: {}", how, errors.substr(0, kMaxShownBytes)),
           "fix the errors above; if a host cannot be reached, check `ssh HOST true` and the "
           "firewall"}};
}

void print(const std::vector<Finding>& findings) {
  std::fputs(daemon::text_of(findings).c_str(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace

daemon::CommandResult doctor_command(const DoctorOptions& options) {
  const std::string program = launch::rank_program(options.program);
  std::vector<Finding> host{version(),          cores(),  memory(), shared_memory(),
                            temporary_folder(), mpirun(), srun(),   ssh()};
  add_rank_program(program, &host);
  host.push_back(gpus());
  // No rank runs yet, so all processes on a GPU are foreign.
  for (const daemon::GpuProcess& one : daemon::gpu_processes())
    host.push_back({Finding::kNote, "GPUs",
                    fmt::format("{} is busy with {}", one.gpu_id, daemon::text_of(one)),
                    "end it, or exclude that GPU with CUDA_VISIBLE_DEVICES: both programs run more "
                    "slowly, and memory may be too small"});
  print(host);
  if (daemon::exit_code_of(host) != 0) return {"no ranks are started until that is fixed\n", 69};
  const std::vector<Finding> ranks = rank_findings(options, program);
  print(ranks);
  return {"", daemon::exit_code_of(ranks)};
}

}  // namespace lockstep::cli
