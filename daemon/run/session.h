#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/save/saver.h"
#include "daemon/config/run_config.h"
#include "daemon/run/resume.h"
#include "dist/communicator.h"
#include "dist/notice.h"
#include "dist/process_info.h"
#include "train/run.h"

namespace lockstep::daemon {

/// The command line of lockstepd.
struct SessionOptions {
  std::string config_file;
  std::optional<std::string> config_text;  ///< what it says; nothing: it is read
  std::vector<Override> overrides;
  ResumeOptions resume;
};

/// The world this process stands in; all of it outlives the session.
struct SessionWorld {
  dist::Communicator& control;  ///< on CPUs; used until the run file is read and compared
  const dist::ProcessInfo& process;
  std::string mpi_version;  ///< empty: none
  /// A further communicator of all ranks for CPU tensors, as the run file asks. Collective.
  std::function<std::unique_ptr<dist::Communicator>(const dist::SyncOptions&)>
      make_cpu_communicator;
  /// Words from rank to rank beside all communicators, where there are several. Collective.
  std::function<std::unique_ptr<dist::Notice>()> make_notice;
  train::StopRequest& stop;
  bool is_interactive = false;  ///< somebody reads stderr of this process alone
  train::StepHook on_step;      ///< may be empty
  checkpoint::SavePhaseHook at_save_phase = {};
  /// Ends all ranks at once for an error of this one; does not return. Empty: the error is thrown.
  std::function<void(const Error&)> abort = {};
};

/// One run from its file to its summary, on every rank. Collective. Throws Error; where it is not
/// on_every_rank(), the caller must abort the world.
ExitCode run_session(const SessionOptions& options, const SessionWorld& world);

}  // namespace lockstep::daemon
