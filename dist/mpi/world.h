#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/notice.h"
#include "dist/process_info.h"

namespace lockstep::dist::mpi {

class NoticeBoard;
class WindowKeeper;

/// How the ranks of a communicator exchange. Equal on all of them.
struct CommunicatorOptions {
  bool shared_window = true;  ///< ranks of one host through shared memory, where it has the space
  double timeout_s = 300;     ///< longest wait for a peer within a collective; longer ones throw
  double slow_after_s = 60;   ///< a longer wait is logged, once, naming the peer
  std::vector<int> hosts_N;   ///< host of each rank, from 0; empty: as MPI sees it. For tests
  /// Up to so many ranks, or hosts, send to all others (dist/mpi/p2p/p2p_communicator.h).
  int direct_ranks = 16;
};

/// How long MPI may take to start on all ranks.
struct StartLimits {
  double slow_s = 30;   ///< then a line of the log says that it waits
  double hang_s = 600;  ///< then this process ends (79); 0: never
};

/// MPI's life in this process: starts it and, destroyed, ends it. One per process; MPI cannot be
/// started again.
///
/// Order: every communicator made here must be gone before the world is. The destructor waits for
/// all ranks, so a rank that leaves because of an error which the others do not share
/// (Error::on_every_rank() is false) calls abort() instead.
class World {
 public:
  /// Throws Error(kUnavailable) if MPI cannot be started with MPI_THREAD_MULTIPLE.
  explicit World(const StartLimits& limits = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// As MPI sees it: all fields set, nodes counted by shared memory. Collective in the constructor,
  /// not here.
  const ProcessInfo& process_info() const { return info_; }

  /// All ranks, in a message space of its own: calls on two communicators cannot be mixed up.
  /// Collective.
  std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options = {});

  /// Words from rank to rank beside all communicators. Every rank makes them in the same order; the
  /// world must outlive them.
  std::unique_ptr<Notice> make_notice();

  /// Shared memory of communicators stays when they are gone. How much there is now, and its end
  /// for all that came later: the communicators that were made since must be gone on all ranks.
  /// The second is collective.
  size_t num_windows() const;
  void free_windows_from(size_t first);

  /// All ranks have said that they leave: from now on this process waits no longer than that for
  /// MPI to end, and then ends by itself with 79. MPI would wait without end for a rank that hangs.
  void limit_end(double limit_s) { end_limit_s_ = limit_s; }

  /// Ends all ranks at once; the launcher returns `exit_code`. Does not return, and ends this
  /// process within 3 s even if MPI hangs.
  [[noreturn]] void abort(int exit_code);

  /// "Open MPI v4.1.4, ...": must be equal on all ranks.
  static std::string library_version();

 private:
  ProcessInfo info_;
  std::shared_ptr<WindowKeeper> keeper_;
  std::unique_ptr<NoticeBoard> notices_;
  std::optional<double> end_limit_s_;
};

}  // namespace lockstep::dist::mpi
