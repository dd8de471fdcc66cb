#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"

/// Collective exchange of faults: a fault on one rank ends the work on all ranks with the same
/// error.
namespace lockstep::checkpoint {

/// Returns the exception being handled as an Error. Faults of the system (memory, threads, files)
/// become kIo. Any other exception that is not an Error becomes kBug.
Error current_error();

/// Returns what `body` threw, converted by current_error(); nullopt if it returned. `body` must not
/// call a collective: a lost peer must not count as a fault of this rank.
template <typename Body>
std::optional<Error> fault_of(Body body) {
  try {
    body();
    return std::nullopt;
  } catch (...) {
    return current_error();
  }
}

/// Returns the error's text without the area in brackets.
std::string plain_text(const Error& fault);

/// Returns the fault of the lowest rank that has one, with the rank in its text. Collective; the
/// result is the same on every rank.
std::optional<Error> shared_fault(dist::Communicator& control, const std::optional<Error>& fault);

/// Runs `body` on every rank. Throws the first rank's error on all of them. Collective.
template <typename Body>
void run_on_all(dist::Communicator& comm, const Body& body) {
  if (const auto fault = shared_fault(comm, fault_of(body))) throw Error(*fault);
}

/// Returns on every rank the text that `body` returns on rank 0, or throws its error. Collective.
template <typename Body>
std::string text_of_rank_0(dist::Communicator& comm, const Body& body) {
  std::string text;
  run_on_all(comm, [&] {
    if (comm.rank() == 0) text = body();
  });
  return dist::broadcast_text(comm, text);
}

/// Scope with a shorter timeout of waits for other ranks. A timeout that is already shorter stays.
class TimeLimit {
 public:
  TimeLimit(dist::Communicator& comm, double timeout_s)
      : comm_(comm), before_s_(comm.set_timeout(timeout_s)) {
    if (before_s_ < timeout_s) comm.set_timeout(before_s_);
  }
  ~TimeLimit() { comm_.set_timeout(before_s_); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  dist::Communicator& comm_;
  const double before_s_;
};

}  // namespace lockstep::checkpoint
