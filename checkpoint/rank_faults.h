#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "dist/communicator.h"

/// Faults that happen on one rank and must end the same way on all.
namespace lockstep::checkpoint {

/// What `body` threw, as an Error: what the system lacks or refuses as kIo, anything else that is
/// no Error as a bug. Let no collective be called inside: a lost peer must not be taken for a fault
/// of this rank.
template <typename Body>
std::optional<Error> fault_of(Body body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& fault) {
    return fault;
  } catch (const std::system_error& fault) {  // of the file system, or no more threads
    return Error(ExitCode::kIo, "checkpoint", fault.what());
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::kIo, "checkpoint", "no memory");
  } catch (const std::exception& fault) {
    return Error(ExitCode::kBug, "checkpoint", fault.what());
  }
}

/// The text without the area in brackets.
std::string plain_text(const Error& fault);

/// Collective. The fault of the lowest rank that has one, the same on every rank, with the rank in
/// its text.
std::optional<Error> shared_fault(dist::Communicator& control, const std::optional<Error>& fault);

}  // namespace lockstep::checkpoint
