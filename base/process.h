#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/log.h"

/// The process and its host: state, exit, shell commands, limits of memory and CPU, cores.
namespace lockstep {

/// State that lives as long as the process, with the function that resets it to that of a new
/// process. A server of jobs calls all of them before each job, so that no job sees another's
/// state. Define it next to the variable, at namespace scope:
///
///   const ProcessState counts("counts of log lines", [] { count_anew(); });
///
/// tools/check_rules.py compares the variables that live as long as the process with these.
class ProcessState {
 public:
  using Reset = void (*)();

  ProcessState(const char* name, Reset reset) noexcept;
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

  /// Calls every reset function, in no particular order. Main thread, while no job runs.
  static void begin_job();

 private:
  [[maybe_unused]] const char* const name_;  ///< for people with a debugger
  const Reset reset_;
  const ProcessState* const next_;
};

/// Ends the process with this exit code after flushing all output, but without the destructors of
/// globals. Those of LibTorch take a quarter of its loading time. For the end of main(), when no
/// work is in progress. Builds with sanitizers do run the destructors, because sanitizers report
/// there.
[[noreturn]] inline void end_process(int exit_code) {
  (void)log::flush(2.0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(exit_code);
#else
  (void)std::fflush(nullptr);
  ::_exit(exit_code);
#endif
}

/// Returns a word in the form for a shell, quoted if necessary.
std::string shell_quoted(const std::string& word);

struct ShellResult {
  std::string text;     ///< output on stdout
  int exit_code = 127;  ///< as of a shell; 127: it could not be started, or a signal ended it
};

/// Runs a command with /bin/sh, without standard input, and waits for its end.
ShellResult run_in_shell(const std::string& command);

/// Returns the host name from the OS; "unknown" on failure.
std::string host_name();

/// Returns the start of a process in ticks since the host's boot; 0 if it is gone or a zombie.
int64_t start_ticks_of(int64_t pid);

/// Returns the reason of the last dlopen() or dlsym() that failed.
std::string dl_error();

/// Returns the first line of a virtual file of the kernel (/proc, /sys); empty if it cannot be
/// read.
std::string first_line(const std::filesystem::path& path);

/// Returns the resident memory of this process in bytes; 0 if the kernel does not report it.
double resident_bytes();

/// Limits of a container, or of any other control group of this process. Limits of outer groups
/// apply too: the smallest counts.
struct CgroupLimits {
  std::optional<double> cores;          ///< CPU quota / period: 1.5 for a limit of `1500m`
  std::optional<int64_t> memory_bytes;  ///< limit above which a process is killed
};

/// Reads the limits on Linux, control groups v1 and v2, also both at once. `root` is prepended to
/// /proc and /sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

/// Returns the memory in bytes of this host, or of the container if that is less.
int64_t usable_memory_bytes();

/// Physical core: those of its hardware threads that this process may use, ascending.
struct Core {
  int numa_node = 0;
  std::vector<int> cpus;
};

/// Returns the cores that this process may run on, ordered by NUMA node and number. Launchers and
/// schedulers narrow this affinity. Linux only; `sys_folder` is the kernel's description of the
/// processor.
std::vector<Core> allowed_cores(const std::filesystem::path& sys_folder = "/sys/devices/system");

/// Returns how many cores this process can keep busy, at least 1. It is allowed_cores(), or fewer
/// if its container has a CPU quota (CgroupLimits). Reads dozens of the kernel's files each time.
int num_usable_cores();

/// Parses the kernel's list form: "0-3,8" -> 0, 1, 2, 3, 8. Any other text gives an empty list.
std::vector<int> parse_cpu_list(const std::string& text);
/// Returns the shortest text of that form.
std::string cpu_list(std::vector<int> cpus);

/// Returns the contiguous share of `cores` for one of `num_shares`. Sizes differ by at most one.
/// Each share has at least one core; with too few cores, several shares have the same one.
std::vector<Core> share_of_cores(const std::vector<Core>& cores, int share, int num_shares);

/// Returns all hardware threads of these cores.
std::vector<int> cpus_of(const std::vector<Core>& cores);

/// Binds this thread, and threads that it starts later, to these CPUs. False if the system refuses.
bool bind_this_thread(const std::vector<int>& cpus);

}  // namespace lockstep
