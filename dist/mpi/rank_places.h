#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <mpi.h>

#include "dist/cpu/peer.h"
#include "dist/mpi/comm.h"
#include "dist/process_info.h"

namespace lockstep::dist::mpi {

/// Processes that carry the ranks of a world, and spare ones. If a process ends, the others give
/// its rank to a spare: ranks are places in an order, and all others keep theirs.
///
/// Agreement: each process that notices a loss tells all others which processes it knows to be
/// lost. The first living rank hears all others, decides, and tells them and the spares. A process
/// whose decider ends turns to the next one. A process sees the end of those on its host, and is
/// told of the others'; the first rank of a host kills those there that do not come. A host whose
/// processes are all silent cannot be replaced: they may still live.
///
/// Open MPI 4.1 must not end the others (--mca orte_abort_on_non_zero_status 0). Messages between
/// living processes, and communicators of them, then work as before.
class RankPlaces {
 public:
  /// The last num_spares processes are spares. Collective over all processes.
  explicit RankPlaces(int num_spares);

  /// Communicator of the ranks; MPI_COMM_NULL in a spare.
  MPI_Comm comm() const { return ranks_ == nullptr ? MPI_COMM_NULL : ranks_->get(); }
  bool is_spare() const { return comm() == MPI_COMM_NULL; }
  bool have_spares() const { return num_spares_ > 0; }
  Spares spares() const;
  /// Returns the processes of all ranks, by rank.
  std::vector<RankProcess> rank_processes() const;
  /// True if a process was lost since the start: MPI can then not be finalized. After end_world()
  /// equal in all processes.
  bool have_lost();
  /// True if the process of some rank has ended.
  bool lacks_rank() const;
  /// Returns a lost rank that has ended on this host, or of which others have told. Any thread.
  std::optional<cpu::Peer> find_lost();
  /// True if some process is on another host, so that waits must ask find_lost().
  bool span_hosts() const { return spans_hosts_; }

  /// Waits in a spare until it gets a rank. Returns false if the run ends without that.
  bool wait_for_rank();
  /// Kills ranks that call neither this nor replace_lost() within patience_s. Returns once each
  /// rank has called one of them or has ended. So other threads of this process, which may wait for
  /// a rank that hangs, see its end. Before replace_lost(); optional.
  void end_late(double patience_s);
  /// Gives the ranks of ended processes to spares. Collective over the living ranks. `patience_s`:
  /// a rank that is later is killed and counts as lost. Throws Error(kUnavailable) if there are too
  /// few spares, or if a host does not answer.
  void replace_lost(double patience_s);
  /// Ends the world: rank 0 hears from each rank whether it knows of a lost process, and tells all
  /// others, spares too. Each rank calls it once, when none waits for another any more.
  void end_world();

 private:
  using Clock = std::chrono::steady_clock;
  enum Cause { kLives, kEnded, kHung };
  /// State of a process in a round: it knows of a loss, or is ready for the decision.
  enum Phase { kTrains, kKnows, kIsReady };
  /// First word of a decision.
  enum Word { kGoOn, kTooFew, kEnd, kEndAfterLoss };

  bool lives(int process) const;
  bool any_lost();
  bool has_rank(int process) const;
  int first_living() const;
  void listen();
  void say_lost(Phase phase, double patience_s, std::optional<int> only = std::nullopt);
  void watch_this_host();
  bool has_come(int process, Phase phase) const;
  void fence(Phase phase, double patience_s);
  int late_one(Phase phase) const;
  void give_up(int process);
  void end(int process);
  bool are_on_one_host(int process, int other) const;
  int spare_for(int lost, const std::vector<int>& processes_N) const;
  std::vector<int> decide();
  void tell(const std::vector<int>& processes_N) const;
  void send_words(std::vector<int> words) const;
  bool hear_decision(std::vector<int>* processes_N);
  void form(const std::vector<int>& processes_N);
  void follow(const std::vector<int>& processes_N);

  OwnedComm talk_;  ///< of all processes, for agreements alone
  int self_ = 0, num_ranks_ = 0, num_spares_ = 0;
  bool spans_hosts_ = false;
  std::optional<Word> end_;                ///< set once rank 0 has ended the world
  int num_lost_ = 0, num_hung_ = 0;        ///< ranks; the first includes the second
  std::vector<cpu::Peer> peers_;           ///< by process
  std::vector<bool> are_seen_;             ///< by process: its end is visible here
  std::unique_ptr<OwnedComm> ranks_;       ///< null in a spare
  std::deque<std::vector<int>> messages_;  ///< of say_lost(); MPI may still read them

  mutable std::mutex mutex_;      ///< for what follows, which find_lost() uses
  int round_ = 0;                 ///< number of agreements
  std::vector<int> processes_N_;  ///< process of each rank
  std::vector<int> causes_;       ///< by process: Cause, as far as it is told or was found here
  std::vector<int> phases_;       ///< by process: Phase in this round, as far as it is told
  double told_patience_s_ = 0;    ///< the longest patience of a rank that has come
  std::vector<int> said_;         ///< causes_ as this process has last told them
  Phase said_phase_ = kTrains;    ///< its own phase, as it has last told it
  Clock::time_point first_said_;  ///< when it told it first
};

}  // namespace lockstep::dist::mpi
