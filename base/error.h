#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

/// What the process returns, and so what a job script may do (docs/exit_codes.md).
enum class ExitCode : int {
  kDone = 0,
  kUsage = 64,         ///< wrong command line
  kBadData = 65,       ///< data or a checkpoint that cannot be trusted
  kInputMissing = 66,  ///< an input file is not there
  kUnavailable = 69,   ///< a peer or the cluster is gone
  kBug = 70,           ///< a bug of ours
  kCannotCreate = 73,  ///< an output cannot be written
  kIo = 74,            ///< I/O fault or no space
  kStopped = 75,       ///< stopped after a clean save: run again
  kDisagree = 76,      ///< ranks hold different values
  kConfig = 78,        ///< the run file is wrong
  kWatchdog = 79,      ///< a rank hangs
  kNonFinite = 80,     ///< too many non-finite steps
};

/// The one error type of Lockstep. The text begins with the area in brackets and says what, where
/// and what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string_view area, const std::string& message)
      : std::runtime_error("[" + std::string(area) + "] " + message), code_(code) {}

  ExitCode code() const { return code_; }

  /// True if every rank throws this same error at the same place, so that all may end in order.
  /// Otherwise the rank that caught it must abort the world, or its peers would wait for it.
  bool on_every_rank() const { return on_every_rank_; }
  Error&& everywhere() && {
    on_every_rank_ = true;
    return std::move(*this);
  }

  /// Adds to the end of the text: for who catches an error by reference, knows more of its place,
  /// and throws it on. Not while another thread may read the text.
  void append(std::string_view more) {
    std::runtime_error::operator=(std::runtime_error(what() + std::string(more)));
  }

 private:
  ExitCode code_;
  bool on_every_rank_ = false;
};

/// States what only a bug of ours can break; throws Error(kBug) with the place.
inline void check(bool fact, std::string_view message, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!fact)
    throw Error(ExitCode::kBug, "bug",
                std::string(message) + " (" + file + ":" + std::to_string(line) + ")");
}

}  // namespace lockstep
