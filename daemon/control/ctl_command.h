#pragma once

#include <filesystem>
#include <string>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

/// The command line of `lockstep ctl`.
struct CtlOptions {
  std::string where;  ///< the run file, its folder, http://127.0.0.1:9464, unix:PATH
  std::string
      token_file;       ///< of a run with metrics.token_file; a run file in `where` names its own
  std::string ca_file;  ///< of a run with TLS: who signed its certificate; empty: the system's
  std::string verb;     ///< status, save, stop, drain, pause, resume, set
  std::string change;   ///< of set: KEY=VALUE
  double timeout_s = 300;  ///< of drain: until the run has ended
};

/// What a run file says of where its run can be asked.
struct ControlOfRun {
  std::filesystem::path folder;  ///< run.project_dir
  std::filesystem::path socket;  ///< of control.listen
  bool is_on_pages = false;      ///< at the pages, too
  std::string token_file;        ///< of its pages
};

/// Reads the run file. Throws Error: kConfig for its faults, kUsage where control.listen is off.
ControlOfRun read_control(const std::string& run_file);
using ReadControl = ControlOfRun (*)(const std::string& run_file);

/// Calls the control API of a running job and prints what it answers. `drain` asks it to save and
/// stop, and waits until it has ended. Throws Error: kUsage for what the API refuses, kInputMissing
/// where no job runs, kUnavailable where it does not answer.
/// `read_control` is called where `options` name a run file.
CommandResult ctl_command(const CtlOptions& options, ReadControl read_control);

}  // namespace lockstep::daemon
