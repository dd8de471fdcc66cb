#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files/project.h"
#include "base/yaml/config_reader.h"

namespace lockstep::daemon {

/// Section `run` of the run file.
struct RunOptions {
  std::string name;
  std::string project_dir;  ///< default runs/<name>
  int64_t seed = 17;
  std::string device = "auto";          ///< auto | cpu | cuda
  std::string deterministic = "false";  ///< false | true | elastic
  bool debug = false;  ///< forces data.shuffle to false and deterministic to at least true
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

}  // namespace lockstep::daemon
