#pragma once

#include <array>
#include <csignal>
#include <string>

#include "base/error.h"

namespace lockstep {

/// Cause of an end, and so who must act before another try helps.
enum class ExitClass {
  kDone,       ///< nothing is left to do
  kStopped,    ///< a stop was asked for: the same command continues from the last commit
  kJob,        ///< this job's input, code or options: another try ends the same way
  kHost,       ///< this host's disks, folders or files: the job is sound and keeps its place
  kTransient,  ///< lost or hanging ranks: worth another try without a person
};

/// One row of the table of exit codes, of our programs and of what starts them.
struct ExitFact {
  int code = 0;
  ExitClass exit_class = ExitClass::kJob;
  bool is_usual_after_a_stop = false;  ///< ranks that were told to stop may end with it
};

/// Exit code of a process that a signal has ended, as a shell and mpirun report it.
constexpr int code_of_signal(int signal_number) { return 128 + signal_number; }

constexpr int code_of(ExitCode code) { return static_cast<int>(code); }

/// The only table of what exit codes mean. The supervisor, the queue of jobs, the script for Slurm
/// and the launcher for Kubernetes follow it, and docs/exit_codes.md shows it.
inline constexpr std::array kExitFacts{
    ExitFact{code_of(ExitCode::kDone), ExitClass::kDone},
    ExitFact{1, ExitClass::kTransient, true},  // mpirun: a host is lost, or it was told to end
    ExitFact{code_of(ExitCode::kUsage), ExitClass::kJob},
    ExitFact{code_of(ExitCode::kBadData), ExitClass::kJob},
    ExitFact{code_of(ExitCode::kInputMissing), ExitClass::kJob},  // the queue looks at the path
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
    ExitFact{code_of_signal(SIGKILL), ExitClass::kTransient, true},  // as for want of memory
    ExitFact{code_of_signal(SIGUSR1), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{code_of_signal(SIGSEGV), ExitClass::kTransient},
    ExitFact{code_of_signal(SIGUSR2), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{code_of_signal(SIGTERM), ExitClass::kTransient, true},  // before ranks can handle it
    ExitFact{253, ExitClass::kTransient},                            // srun: out of memory
    ExitFact{255, ExitClass::kTransient, true},  // mpirun: ssh cannot reach a host
};

/// Row of this code; for a code that is not in the table, a job's fault.
constexpr ExitFact exit_fact(int code) {
  for (const ExitFact& fact : kExitFacts)
    if (fact.code == code) return fact;
  return {.code = code};
}

constexpr ExitClass exit_class(int code) { return exit_fact(code).exit_class; }
constexpr ExitClass exit_class(ExitCode code) { return exit_class(code_of(code)); }

/// Ascending codes of a class, joined for a shell's `case`: "1 | 69 | 79".
inline std::string codes_for_case(ExitClass wanted) {
  std::string text;
  for (const ExitFact& fact : kExitFacts)
    if (fact.exit_class == wanted) text += (text.empty() ? "" : " | ") + std::to_string(fact.code);
  return text;
}

}  // namespace lockstep
