#include "base/error.h"
#include "daemon/config/run_config.h"
#include "daemon/control/ctl_command.h"

// Separate from ctl_command.cpp: `lockstep ctl` with the run's folder needs no LibTorch.
namespace lockstep::daemon {

ControlOfRun read_control(const std::string& run_file) {
  Diagnostics faults;
  const RunConfig config = load_run_config(run_file, {}, &faults);
  faults.throw_if_any("config");
  if (config.control.is_off())
    throw Error(ExitCode::kUsage, "ctl",
                run_file + ": control.listen is off: nobody can ask this run");
  const Project project = config.run.project();
  return {project.folder(), config.control.socket_path(project), config.control.is_on_pages(),
          config.metrics.access.token_file};
}

}  // namespace lockstep::daemon
