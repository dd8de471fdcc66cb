#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"

namespace lockstep::daemon {

/// What ended a run, as one rank saw it. Each rank leaves its own in the run's folder of logs, so
/// that a rank which only lost a peer can say what became of that one.
struct Failure {
  int rank = 0;
  std::string node;
  int64_t pid = 0;
  int64_t step = 0;  ///< updates done
  int exit_code = 0;
  std::string message;
  double unix_time_s = 0;
};

/// Writes lockstep-error-<rank>.json. Never throws: where it cannot, the log says so.
void write_failure(const std::filesystem::path& logs, const Failure& failure);

/// Removes what earlier starts have left. Call before any rank of this one may write.
void remove_failures(const std::filesystem::path& logs);

/// Of the other ranks' failures the one that explains this one: the first that is no lost peer and
/// no hang, or, where all are, the first that is older. Nothing if this rank's own says as much.
std::optional<Failure> cause_of(const std::filesystem::path& logs, const Failure& own);

/// In a box, for people: who, where, what, and what to do about it.
std::string boxed(const Failure& failure);

}  // namespace lockstep::daemon
