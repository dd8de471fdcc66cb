#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"

/// Diagnostics that happen on one rank and must end the same way on all, and in time.
namespace lockstep::checkpoint {

/// The exception being handled, as an Error: what the system lacks or refuses (memory, threads,
/// files) as kIo, anything else that is no Error as a bug.
Error current_error();

/// What `body` threw, as current_error() has it; nothing if it returned. Let no collective be
/// called inside: a lost peer must not be taken for a fault of this rank.
template <typename Body>
std::optional<Error> fault_of(Body body) {
  try {
    body();
    return std::nullopt;
  } catch (...) {
    return current_error();
  }
}

/// The text without the area in brackets.
std::string plain_text(const Error& fault);

/// Collective. The fault of the lowest rank that has one, the same on every rank, with the rank in
/// its text.
std::optional<Error> shared_fault(dist::Communicator& control, const std::optional<Error>& fault);

/// A shorter limit of waits for other ranks, until it goes out of scope. One that is shorter anyway
/// stays.
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
