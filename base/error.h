#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

/// Exit code of the process, which tells a job script what to do (docs/exit_codes.md).
enum class ExitCode : int {
  kDone = 0,
  kUsage = 64,         ///< wrong command line
  kBadData = 65,       ///< data or a checkpoint that cannot be trusted
  kInputMissing = 66,  ///< an input file is missing
  kUnavailable = 69,   ///< a peer or the cluster is lost
  kBug = 70,           ///< a bug in Lockstep
  kCannotCreate = 73,  ///< an output cannot be written
  kIo = 74,            ///< I/O fault or no space
  kStopped = 75,       ///< stopped after a committed checkpoint: run again
  kDisagree = 76,      ///< ranks have different values
  kConfig = 78,        ///< the run file is wrong
  kWatchdog = 79,      ///< a rank hangs
  kNonFinite = 80,     ///< too many non-finite steps
};

/// The error type of Lockstep; the few subclasses only let a caller recognize one case. The text
/// begins with the area in brackets and states the fault, its place and the remedy.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string_view area, const std::string& message)
      : std::runtime_error("[" + std::string(area) + "] " + message), code_(code) {}

  ExitCode code() const { return code_; }

  /// True if every rank throws this same error at the same place, so that all can unwind normally.
  /// Otherwise the rank that catches it must abort the world, because its peers would wait for it.
  bool on_every_rank() const { return on_every_rank_; }
  Error&& everywhere() && {
    on_every_rank_ = true;
    return std::move(*this);
  }

  /// Appends to the text. For a function that catches an error by reference, knows more about its
  /// place, and rethrows it. Not while another thread may read the text.
  void append(std::string_view more) {
    std::runtime_error::operator=(std::runtime_error(what() + std::string(more)));
  }

 private:
  ExitCode code_;
  bool on_every_rank_ = false;
};

/// Checks an invariant of our own code; throws Error(kBug) with the place if it is false.
inline void check(bool fact, std::string_view message, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!fact)
    throw Error(ExitCode::kBug, "bug",
                std::string(message) + " (" + file + ":" + std::to_string(line) + ")");
}

}  // namespace lockstep
