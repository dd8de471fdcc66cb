#pragma once

#include <string>
#include <vector>

namespace lockstep::daemon {

/// One thing that `lockstep doctor` has looked at.
struct Finding {
  enum Kind {
    kOk,
    kNote,   ///< runs work, some slower or not all
    kFault,  ///< stops a run
  };

  Kind kind = kOk;
  std::string what;  ///< "/dev/shm"
  std::string text;  ///< what was found
  std::string cure;  ///< what to do about it; empty where it is ok
};

/// A line each, "ok", "note" or "FAULT" first; a cure on a line of its own.
std::string text_of(const std::vector<Finding>& findings);

/// 0, or 69 where one of them stops a run.
int exit_code_of(const std::vector<Finding>& findings);

}  // namespace lockstep::daemon
