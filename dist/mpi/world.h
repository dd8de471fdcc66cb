#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::dist::mpi {

/// MPI's life in this process: starts it and, destroyed, ends it. One per process; MPI cannot be
/// started again.
///
/// Order: every communicator made here must be gone before the world is. The destructor waits for
/// all ranks, so a rank that leaves because of an error which the others do not share
/// (Error::on_every_rank() is false) calls abort() instead.
class World {
 public:
  /// Throws Error(kUnavailable) if MPI cannot be started with MPI_THREAD_MULTIPLE.
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// As MPI sees it: all fields set, nodes counted by shared memory. Collective in the constructor,
  /// not here.
  const ProcessInfo& process_info() const { return info_; }

  /// All ranks, in a message space of its own: calls on two communicators cannot be mixed up.
  /// Collective.
  std::unique_ptr<Communicator> make_communicator();

  /// Ends all ranks at once; the launcher returns `exit_code`. Does not return.
  [[noreturn]] void abort(int exit_code);

  /// "Open MPI v4.1.4, ...": must be equal on all ranks.
  static std::string library_version();

 private:
  ProcessInfo info_;
};

}  // namespace lockstep::dist::mpi
