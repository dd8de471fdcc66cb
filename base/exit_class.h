#pragma once

#include <array>
#include <csignal>
#include <string>

#include "base/error.h"

namespace lockstep {

/// Cause of an exit, which decides who must act before another try helps.
enum class ExitClass {
  kDone,       ///< nothing remains to be done
  kStopped,    ///< a stop was requested: the same command continues from the last commit
  kJob,        ///< this job's input, code or options: another try ends the same way
  kHost,       ///< this host's disks, folders or files: the job is intact and keeps its place
  kTransient,  ///< lost or hanging ranks: another try may succeed without a person
};

/// Row of the table of exit codes, of our programs and of those that start them.
struct ExitFact {
  int code = 0;
  ExitClass exit_class = ExitClass::kJob;
  bool is_usual_after_a_stop = false;  ///< ranks may exit with it after a requested stop
};

/// Returns the exit code of a process that a signal ended, as a shell and mpirun report it.
constexpr int code_of_signal(int signal_number) { return 128 + signal_number; }

constexpr int code_of(ExitCode code) { return static_cast<int>(code); }

/// Table of all exit codes, the only one. The supervisor, the job queue, the script for Slurm and
/// the launcher for Kubernetes use it, and docs/exit_codes.md shows it.
inline constexpr std::array kExitFacts{
    ExitFact{code_of(ExitCode::kDone), ExitClass::kDone},
    ExitFact{1, ExitClass::kTransient, true},  // mpirun: a host is lost, or mpirun was stopped
    ExitFact{code_of(ExitCode::kUsage), ExitClass::kJob},
    ExitFact{code_of(ExitCode::kBadData), ExitClass::kJob},
    ExitFact{code_of(ExitCode::kInputMissing), ExitClass::kJob},  // the queue checks the path
    ExitFact{code_of(ExitCode::kUnavailable), ExitClass::kTransient, true},
    ExitFact{code_of(ExitCode::kBug), ExitClass::kJob},
    ExitFact{code_of(ExitCode::kCannotCreate), ExitClass::kHost},
    ExitFact{code_of(ExitCode::kIo), ExitClass::kHost},
    ExitFact{code_of(ExitCode::kStopped), ExitClass::kStopped, true},
    ExitFact{code_of(ExitCode::kDisagree), ExitClass::kHost},
    ExitFact{code_of(ExitCode::kConfig), ExitClass::kJob},
    ExitFact{code_of(ExitCode::kWatchdog), ExitClass::kTransient},
    ExitFact{code_of(ExitCode::kNonFinite), ExitClass::kJob},
    ExitFact{code_of_signal(SIGHUP), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{code_of_signal(SIGINT), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{code_of_signal(SIGILL), ExitClass::kJob},  // 132 is mpirun's "cannot start it", too
    ExitFact{code_of_signal(SIGABRT), ExitClass::kTransient},
    ExitFact{code_of_signal(SIGBUS), ExitClass::kTransient},
    ExitFact{code_of_signal(SIGFPE), ExitClass::kJob},
    ExitFact{code_of_signal(SIGKILL), ExitClass::kTransient, true},  // for instance out of memory
    ExitFact{code_of_signal(SIGUSR1), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{code_of_signal(SIGSEGV), ExitClass::kTransient},
    ExitFact{code_of_signal(SIGUSR2), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{code_of_signal(SIGTERM), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{253, ExitClass::kTransient},                            // srun: out of memory
    ExitFact{255, ExitClass::kTransient, true},  // mpirun: ssh cannot reach a host
};

/// Returns the row of this code. A code that is not in the table counts as the job's fault.
constexpr ExitFact exit_fact(int code) {
  for (const ExitFact& fact : kExitFacts)
    if (fact.code == code) return fact;
  return {.code = code};
}

/// Beginning of a line on stderr that tells the exit code of a run with spare processes: mpirun's
/// own code may be that of a lost rank.
inline constexpr std::string_view kExitCodeLine = "lockstepd: the run ends with exit code ";

constexpr ExitClass exit_class(int code) { return exit_fact(code).exit_class; }
constexpr ExitClass exit_class(ExitCode code) { return exit_class(code_of(code)); }

/// Returns the ascending codes of a class, joined for a shell's `case`: "1 | 69 | 79".
inline std::string codes_for_case(ExitClass wanted) {
  std::string text;
  for (const ExitFact& fact : kExitFacts)
    if (fact.exit_class == wanted) text += (text.empty() ? "" : " | ") + std::to_string(fact.code);
  return text;
}

}  // namespace lockstep
