#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::daemon {

/// Error that ended a run, as one rank saw it. Each rank writes its own to the run's log folder. So
/// a rank that only lost a peer can report that peer's error.
struct Failure {
  int rank = 0;
  std::string node;
  int64_t pid = 0;
  int64_t step = 0;  ///< updates done
  int exit_code = 0;
  std::string message;
  double unix_time_s = 0;
};

/// Writes lockstep-error-<rank>.json. Never throws; logs a warning if it fails.
void write_failure(const std::filesystem::path& logs, const Failure& failure);

/// Removes the files of earlier starts. Call it before any rank of this start may write.
void remove_failures(const std::filesystem::path& logs);

/// Returns the other rank's failure that explains this one. Errors other than a lost peer or a hang
/// come first, then the earliest. nullopt if this rank's own error is not a lost peer or a hang, or
/// is itself the earliest.
std::optional<Failure> cause_of(const std::filesystem::path& logs, const Failure& own);

/// Returns the failure in a text box for people: who, where, what, and what to do about it.
std::string boxed(const Failure& failure);

}  // namespace lockstep::daemon
