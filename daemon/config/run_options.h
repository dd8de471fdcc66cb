#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files/project.h"
#include "base/yaml/config_reader.h"
#include "dist/nccl/gpu_memory.h"

/// Sections `run`, `preemption`, `control`, `gpu` and `watchdog` of the run file.
namespace lockstep::daemon {

/// Section `run` of the run file.
struct RunOptions {
  std::string name;
  std::string project_dir;  ///< default runs/<name>
  int64_t seed = 17;
  std::string device = "auto";          ///< auto | cpu | cuda
  std::string deterministic = "false";  ///< false | true | elastic
  bool debug = false;       ///< forces data.shuffle to false and deterministic to at least true
  int64_t audit_every = 0;  ///< steps between audits of the ranks' arithmetic; 0: none
  std::optional<int64_t> expect_world_size;
  std::optional<int64_t> expect_nodes;
  int64_t threads = 0;              ///< per rank; 0: the host's cores divided by its ranks
  std::string bind_cores = "auto";  ///< auto | true | false

  bool is_elastic() const { return deterministic == "elastic"; }
  Project project() const { return Project(project_dir); }
};

RunOptions read_run_options(ConfigReader in);

/// Section `preemption` of the run file: how a run reacts to a request to end.
struct PreemptionOptions {
  std::vector<std::string> signals{"SIGUSR1"};  ///< save and stop, however long it takes
  double grace_s = 1.0;                         ///< key grace_seconds

  /// Returns the numbers of `signals`.
  std::vector<int> stop_signals() const;
};

PreemptionOptions read_preemption_options(ConfigReader in);

/// Section `control` of the run file: where `lockstep ctl` connects to the run.
struct ControlOptions {
  std::string listen = "unix";  ///< unix | unix:PATH | pages | off

  bool is_on_pages() const { return listen == "pages"; }
  bool is_off() const { return listen == "off"; }
  /// True if the run file names the path of the socket.
  bool names_socket() const { return listen.starts_with("unix:"); }
  /// Returns the path of the Unix socket; empty if there is none. Relative paths start at the run's
  /// folder.
  std::filesystem::path socket_path(const Project& project) const;
};

ControlOptions read_control_options(ConfigReader in);

/// Section `gpu` of the run file: how a process allocates the memory of its GPU.
/// CUDA_VISIBLE_DEVICES and daemon/run/device.h decide which GPU that is.
struct GpuOptions {
  std::optional<bool> allow_growth;
  std::optional<double> per_process_gpu_memory_fraction;  ///< in (0, 1]; absent: all of it
  std::string memory_policy = "default";  ///< default: as needed | all: at the start

  dist::GpuMemoryOptions memory() const;
  /// True if the run file sets any key of the section.
  bool is_given() const {
    return allow_growth || per_process_gpu_memory_fraction || memory_policy != "default";
  }
};

/// Reads the section. Keys that contradict each other are faults.
GpuOptions read_gpu_options(ConfigReader in);

/// Phase of a rank's loop; each has its own time limits.
enum class WatchPhase { kInit, kStep, kEvaluation, kMaskUpdate, kSave };
inline constexpr int kNumWatchPhases = 5;
/// Returns the name in the run file: "init", "step", "evaluation", "mask_update", "save".
const char* phase_name(WatchPhase phase);

/// Section `watchdog` of the run file.
struct WatchdogOptions {
  /// Limits that a phase sets for itself.
  struct Phase {
    std::optional<double> slow_s, hang_s;
  };

  double slow_s = 60;    ///< key slow_seconds
  double hang_s = 1800;  ///< key hang_seconds; 0: never
  std::array<Phase, kNumWatchPhases> phases{};

  const Phase& of(WatchPhase phase) const { return phases[static_cast<size_t>(phase)]; }
  double slow_s_of(WatchPhase phase) const { return of(phase).slow_s.value_or(slow_s); }
  double hang_s_of(WatchPhase phase) const { return of(phase).hang_s.value_or(hang_s); }
  /// Returns the key of the phase's hang limit: "watchdog.save.hang_seconds".
  std::string hang_key_of(WatchPhase phase) const;
  /// Returns the shortest of all limits that are set.
  double shortest_s() const;
  /// Sets a key of this section: "hang_seconds" or "save.hang_seconds". The key must exist.
  void set(const std::string& key, double value_s);
};

WatchdogOptions read_watchdog_options(ConfigReader in);

}  // namespace lockstep::daemon
