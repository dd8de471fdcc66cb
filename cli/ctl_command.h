#pragma once

#include <filesystem>
#include <string>

#include "daemon/config/program.h"

namespace lockstep::cli {

/// The command line of `lockstep ctl`.
struct CtlOptions {
  std::string where;  ///< the run file, its folder, http://127.0.0.1:9464, unix:PATH
  std::string
      token_file;       ///< of a run with metrics.token_file; a run file in `where` names its own
  std::string ca_file;  ///< CA certificate of a run with TLS; empty: the system's
  std::string verb;     ///< status, save, stop, drain, pause, resume, set, kill-rank
  std::string value;    ///< for set: KEY=VALUE; for kill-rank: a rank
  double timeout_s = 300;  ///< for drain: longest wait for the run's end
};

/// Facts of a run file that are needed to connect to its run.
struct ControlOfRun {
  std::filesystem::path folder;  ///< run.project_dir
  std::filesystem::path socket;  ///< of control.listen
  bool is_on_pages = false;      ///< also served at the pages
  std::string token_file;        ///< token of its pages
};

/// Reads the run file. Throws Error: kConfig for its faults, kUsage where control.listen is off.
ControlOfRun read_control(const std::string& run_file);

/// Calls the control API of a running job and prints the answer. `drain` requests a save and a
/// stop, and waits until the run has ended. Throws Error: kUsage if the API refuses the call,
/// kInputMissing if no job runs, kUnavailable if the job does not answer. Throws NeedsTensors where
/// `lockstep` has to read a run file.
daemon::CommandResult ctl_command(const CtlOptions& options);

}  // namespace lockstep::cli
