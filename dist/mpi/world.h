#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "dist/communicator.h"
#include "dist/cpu/make_communicator.h"
#include "dist/process_info.h"

/// Start and end of MPI, and communicators over it. This header does not include mpi.h.
namespace lockstep::dist::mpi {

class RankPlaces;
class NoticeBoard;

/// Time limits for the start of MPI on all ranks.
struct StartLimits {
  double slow_s = 30;   ///< seconds after which the log says that it waits
  double hang_s = 600;  ///< seconds after which this process ends (79); 0: never
};

/// Waits a moment before this process tells the launcher that a peer is lost (69). The launcher
/// ends with the first code that it learns, and that of the lost peer says why.
void let_cause_be_told(int exit_code);

/// MPI in this process: the constructor starts it, the destructor ends it. One per process; MPI
/// cannot be started again.
///
/// Order: destroy every communicator made here before the world. The destructor waits for all
/// ranks. So a rank that leaves because of an error of its own (Error::on_every_rank() is false)
/// must call abort() instead.
class World {
 public:
  /// num_spares: the last processes wait, and take the place of ranks that are lost
  /// (dist/mpi/rank_places.h). Throws Error(kUnavailable) if MPI cannot be started with
  /// MPI_THREAD_MULTIPLE, Error(kUsage) if there cannot be so many spares.
  explicit World(const StartLimits& limits = {}, int num_spares = 0);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// True in a process that has no rank. Then only wait_for_rank() may be called.
  bool is_spare() const;
  /// Waits until this process gets a rank. Returns false at the end of the run.
  bool wait_for_rank();
  /// True if spares can take the place of lost ranks, and some rank's process has ended or is about
  /// to: `error` tells of a lost or late rank.
  bool can_replace(const Error& error) const;
  /// Kills ranks that call neither this nor replace_lost() within patience_s. So other threads of
  /// this process stop waiting for them. Before replace_lost(); optional.
  void end_late(double patience_s);
  /// Gives the places of lost ranks to spares. A rank that is later than patience_s is killed
  /// first. Collective over the living ranks. Before it, every communicator and notice must be
  /// destroyed. Throws Error(kUnavailable) if there are too few spares.
  void replace_lost(double patience_s);
  /// True if a process was lost since the start, in a world with spares. MPI then ends without
  /// MPI_Finalize.
  bool has_lost() const;
  /// Ends spares, and tells all ranks whether a process was lost. Every rank calls it at the end of
  /// a run, when none waits for another any more.
  void end_ranks();

  /// Returns the placement found by MPI: all fields set, nodes counted by shared memory. Not
  /// collective; the constructor was.
  const ProcessInfo& process_info() const { return info_; }

  /// Creates a communicator of all ranks, with separate messages: calls on two communicators cannot
  /// be confused. Collective.
  std::unique_ptr<Communicator> make_communicator(const cpu::CommunicatorOptions& options = {});

  /// Creates flags that ranks send outside of all communicators. Every rank creates them in the
  /// same order; the world must outlive them.
  std::unique_ptr<Notice> make_notice();

  /// Limits the wait for MPI to end, in seconds; then this process ends itself with 79. Call it
  /// after all ranks have announced their end. MPI itself would wait forever for a rank that hangs.
  void limit_end(double limit_s) { end_limit_s_ = limit_s; }

  /// Ends all ranks at once; the launcher returns `exit_code`. Does not return. Ends this process
  /// within 3 s even if MPI hangs.
  [[noreturn]] void abort(int exit_code);

  /// Returns MPI's version text, "Open MPI v4.1.4, ...": must be equal on all ranks.
  static std::string library_version();

 private:
  void settle_in();
  void end_without_agreement();

  std::unique_ptr<RankPlaces> places_;
  ProcessInfo info_;
  std::unique_ptr<NoticeBoard> notices_;
  std::optional<double> end_limit_s_;
};

/// Sets Open MPI's settings for Lockstep in the environment of this process, unless the user has
/// set them. Call this before MPI_Init, which reads them, while the process has one thread.
///
/// Ranks that all share one host, according to the launcher's variables, do not search for network
/// cards. That takes up to a third of a second.
void prefer_open_mpi_settings();

}  // namespace lockstep::dist::mpi
