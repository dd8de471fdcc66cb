#pragma once

#include <string>
#include <vector>

namespace lockstep::daemon {

/// One result of `lockstep doctor`.
struct Finding {
  enum Kind {
    kOk,
    kNote,   ///< runs work, but some are slower or impossible
    kFault,  ///< prevents any run
  };

  Kind kind = kOk;
  std::string what;  ///< subject: "/dev/shm"
  std::string text;  ///< result of the check
  std::string cure;  ///< what to do about it; empty if ok
};

/// Returns a line per finding that begins with "ok", "note" or "FAULT". A cure is on its own line.
std::string text_of(const std::vector<Finding>& findings);

/// Returns 0, or 69 if a finding is a fault.
int exit_code_of(const std::vector<Finding>& findings);

}  // namespace lockstep::daemon
