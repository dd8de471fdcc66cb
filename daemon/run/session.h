#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/save/saver.h"
#include "daemon/config/run_config.h"
#include "daemon/run/resume.h"
#include "daemon/run/run_memory.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "train/run.h"

namespace lockstep::daemon {

/// Options of lockstepd's command line for one run.
struct SessionOptions {
  std::string config_file;
  std::optional<std::string> config_text;  ///< content of the file; nullopt: read it
  std::vector<Override> overrides;
  ResumeOptions resume;
  /// Set: the run continues from it, not from a checkpoint. Emptied once training continues.
  RunMemory* memory = nullptr;
};

/// Thrown by run_session() in place of an error: other ranks are lost, and the run can continue in
/// this process with those that take their places. Not an exception of the standard library, so
/// that no handler reports it as a fault.
struct RanksLost {
  RunMemory memory;
  double patience_s = 0;  ///< for a rank that comes late to the agreement
};

/// Environment of a session on this rank: communicators, process facts and hooks. All of it
/// outlives the session.
struct SessionWorld {
  dist::Communicator& control;  ///< for CPU tensors; used until the run file is read and compared
  const dist::ProcessInfo& process;
  std::string mpi_version;  ///< empty: no MPI
  /// Creates a further communicator of all ranks for CPU tensors, with the run file's options.
  /// Collective.
  std::function<std::unique_ptr<dist::Communicator>(const dist::SyncOptions&)>
      make_cpu_communicator;
  /// Creates the channel for messages that bypass all communicators; set if there are several
  /// ranks. Collective.
  std::function<std::unique_ptr<dist::Notice>()> make_notice;
  StopRequest& stop;
  bool is_interactive = false;  ///< a person reads stderr of this process alone
  train::StepHook on_step;      ///< may be empty
  checkpoint::SavePhaseHook at_save_phase = {};
  /// Ends all ranks at once for an error of this rank alone; does not return. If empty, the error
  /// is thrown.
  std::function<void(const Error&)> abort = {};
  /// True if the error tells of a lost rank whose place a spare can take. Empty: there is no spare.
  std::function<bool(const Error&)> can_replace = {};
  /// Kills ranks that do not call it, or end their session, within so many seconds; set with
  /// can_replace. Called before a session ends by RanksLost: its threads may wait for a rank that
  /// hangs.
  std::function<void(double patience_s)> end_late = {};
};

/// Runs one training run from its file to its summary, on every rank. Collective. Throws Error. If
/// the error is not on_every_rank(), the caller must abort the world. Throws RanksLost.
ExitCode run_session(const SessionOptions& options, const SessionWorld& world);

}  // namespace lockstep::daemon
