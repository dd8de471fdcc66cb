#include "dist/mpi/rank_places.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"

namespace lockstep::dist::mpi {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);
constexpr auto kLongestForming = std::chrono::duration<double>(20);
/// Tags of round n are kTags * n + kLost and so on: messages of an earlier round match no receive.
enum Tag { kLost, kDecision, kForm, kTags };

/// Returns how long a rank may take that others have told of a loss.
std::chrono::duration<double> longest_agreement(double patience_s) {
  return std::chrono::duration<double>(2 * patience_s + 5);
}

/// Returns the sender of a message that has arrived; -1: there is none.
int sender_of(const OwnedComm& comm, int tag) {
  int is_there = 0;
  MPI_Status status;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm.get(), &is_there, &status), "MPI_Iprobe");
  return is_there != 0 ? status.MPI_SOURCE : -1;
}

std::vector<int> receive(const OwnedComm& comm, int from, int tag, size_t num_words) {
  std::vector<int> words(num_words);
  check_mpi(MPI_Recv(words.data(), static_cast<int>(num_words), MPI_INT, from, tag, comm.get(),
                     MPI_STATUS_IGNORE),
            "MPI_Recv");
  return words;
}

}  // namespace

RankPlaces::RankPlaces(int num_spares)
    : talk_(copy_of(MPI_COMM_WORLD)), self_(talk_.rank()), num_spares_(num_spares) {
  const int num_processes = talk_.num_ranks();
  num_ranks_ = num_processes - num_spares;
  if (num_ranks_ < 1)
    throw Error(ExitCode::kUsage, "dist.mpi",
                fmt::format("--spares {}: only {} process(es) were started, and one at least must "
                            "be a rank",
                            num_spares, num_processes));
  const MpiRanks all(copy_of(MPI_COMM_WORLD), self_);
  peers_ = cpu::gather_peers(all);
  processes_N_.resize(static_cast<size_t>(num_ranks_));
  std::iota(processes_N_.begin(), processes_N_.end(), 0);
  causes_.resize(peers_.size());
  phases_.resize(peers_.size());
  std::transform(peers_.begin(), peers_.end(), std::back_inserter(are_seen_), cpu::is_running_here);
  const auto num_seen = std::count(are_seen_.begin(), are_seen_.end(), true);
  spans_hosts_ = num_seen < num_processes;
  if (num_spares > 0 && self_ < num_ranks_ && num_seen == 1)
    log::warning("dist.mpi",
                 "no other process of this run is on this host and in this container: the loss of "
                 "this rank restarts the run");
  MPI_Comm ranks = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, self_ < num_ranks_ ? 0 : MPI_UNDEFINED, self_, &ranks),
            "MPI_Comm_split");
  if (ranks != MPI_COMM_NULL) ranks_ = std::make_unique<OwnedComm>(ranks);
}

bool RankPlaces::lives(int process) const {
  if (are_seen_[process]) return cpu::is_running_here(peers_[process]);
  const std::lock_guard lock(mutex_);
  return causes_[process] == kLives;
}

bool RankPlaces::has_rank(int process) const {
  return std::find(processes_N_.begin(), processes_N_.end(), process) != processes_N_.end();
}

bool RankPlaces::lacks_rank() const {
  return !std::all_of(processes_N_.begin(), processes_N_.end(),
                      [this](int one) { return lives(one); });
}

std::optional<cpu::Peer> RankPlaces::find_lost() {
  listen();
  const std::lock_guard lock(mutex_);
  for (size_t rank = 0; rank < processes_N_.size(); ++rank) {
    const int process = processes_N_[rank];
    // Also one here for which this wait is not: others may wait for this rank.
    const bool has_ended = are_seen_[process] && !cpu::is_running_here(peers_[process]);
    if (causes_[process] == kLives && !has_ended) continue;
    cpu::Peer lost = peers_[process];
    lost.world_rank = static_cast<int32_t>(rank);
    return lost;
  }
  return std::nullopt;
}

bool RankPlaces::have_lost() {
  if (round_ > 0) return true;
  if (end_) return *end_ == kEndAfterLoss;
  return any_lost();
}

bool RankPlaces::any_lost() {
  // Only spares make it possible that a process is lost and others are not.
  if (!have_spares()) return false;
  listen();
  for (int process = 0; process < static_cast<int>(peers_.size()); ++process)
    if (!lives(process)) return true;
  return false;
}

int RankPlaces::first_living() const {
  return *std::find_if(processes_N_.begin(), processes_N_.end(),
                       [this](int one) { return lives(one); });
}

Spares RankPlaces::spares() const {
  int num_left = 0;
  for (int process = 0; process < static_cast<int>(peers_.size()); ++process)
    if (lives(process) && !has_rank(process)) ++num_left;
  return {.num_left = num_left, .num_ended = num_lost_ - num_hung_, .num_hung = num_hung_};
}

std::vector<RankProcess> RankPlaces::rank_processes() const {
  std::vector<RankProcess> found_N;
  for (const int process : processes_N_)
    found_N.push_back({peers_[process].node.data(), peers_[process].pid});
  return found_N;
}

/// Receives what others tell of lost processes.
void RankPlaces::listen() {
  const std::lock_guard lock(mutex_);
  const int tag = kTags * round_ + kLost;
  for (int from = 0; (from = sender_of(talk_, tag)) >= 0;) {
    const std::vector<int> words = receive(talk_, from, tag, peers_.size() + 2);
    phases_[from] = std::max(phases_[from], words[peers_.size()]);
    told_patience_s_ = std::max(told_patience_s_, words.back() / 1000.0);
    for (size_t process = 0; process < peers_.size(); ++process)
      causes_[process] = std::max(causes_[process], words[process]);
  }
}

/// Tells all living processes which ones are lost, and this one's phase, unless they know it from
/// this one. `only`: tells this process alone.
void RankPlaces::say_lost(Phase phase, double patience_s, std::optional<int> only) {
  {
    const std::lock_guard lock(mutex_);
    for (size_t process = 0; process < peers_.size(); ++process)
      if (are_seen_[process] && causes_[process] == kLives &&
          !cpu::is_running_here(peers_[process]))
        causes_[process] = kEnded;
    if (causes_ == said_ && phase == said_phase_) return;
    if (phase != said_phase_) first_said_ = Clock::now();
    said_ = causes_;
    said_phase_ = phase;
  }
  std::vector<int>& words = messages_.emplace_back(said_);
  words.push_back(phase);
  words.push_back(static_cast<int>(patience_s * 1000));
  for (int process = 0; process < static_cast<int>(peers_.size()); ++process) {
    if (process == self_ || !lives(process) || only.value_or(process) != process) continue;
    // Not waited for: a process that is lost and not known to be never takes it.
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(words.data(), static_cast<int>(words.size()), MPI_INT, process,
                        kTags * round_ + kLost, talk_.get(), &request),
              "MPI_Isend");
    check_mpi(MPI_Request_free(&request), "MPI_Request_free");
  }
}

bool RankPlaces::hear_decision(std::vector<int>* processes_N) {
  const int tag = kTags * round_ + kDecision;
  const int from = sender_of(talk_, tag);
  if (from < 0) return false;
  const std::vector<int> words = receive(talk_, from, tag, static_cast<size_t>(num_ranks_) + 2);
  if (words[0] == kEnd || words[0] == kEndAfterLoss) end_ = static_cast<Word>(words[0]);
  num_hung_ = words[1];
  if (words[0] == kGoOn) processes_N->assign(words.begin() + 2, words.end());
  return true;
}

bool RankPlaces::wait_for_rank() {
  std::vector<int> processes_N;
  while (true) {
    while (!hear_decision(&processes_N)) {
      if (std::none_of(processes_N_.begin(), processes_N_.end(),
                       [this](int one) { return lives(one); }))
        return false;
      if (spans_hosts_) watch_this_host();
      std::this_thread::sleep_for(kLook);
    }
    if (processes_N.empty()) return false;
    const bool is_chosen =
        std::find(processes_N.begin(), processes_N.end(), self_) != processes_N.end();
    if (is_chosen) {
      form(processes_N);
      return true;
    }
    follow(std::exchange(processes_N, {}));
  }
}

/// Tells processes of other hosts of losses on this one, which may have no rank that could.
void RankPlaces::watch_this_host() {
  if (!any_lost() && told_patience_s_ == 0) return;
  const auto phase = static_cast<Phase>(std::max<int>(kKnows, std::ranges::max(phases_)));
  say_lost(phase, 0);
  if (told_patience_s_ > 0) fence(phase, told_patience_s_);
}

/// Ends a round: these processes have the ranks now.
void RankPlaces::follow(const std::vector<int>& processes_N) {
  const std::lock_guard lock(mutex_);
  for (size_t rank = 0; rank < processes_N.size(); ++rank)
    num_lost_ += processes_N[rank] != processes_N_[rank] ? 1 : 0;
  processes_N_ = processes_N;
  ++round_;
  phases_.assign(peers_.size(), kTrains);
  told_patience_s_ = 0;
  said_.clear();
  said_phase_ = kTrains;
}

/// True if the process has told that it is in this phase, or a later one.
bool RankPlaces::has_come(int process, Phase phase) const {
  const std::lock_guard lock(mutex_);
  return process == self_ || phases_[process] >= phase;
}

/// Kills the ranks of this host that do not come to this phase, if this is the first one here that
/// has.
void RankPlaces::fence(Phase phase, double patience_s) {
  if (Clock::now() - first_said_ < std::chrono::duration<double>(patience_s)) return;
  for (const int process : processes_N_) {
    if (process == self_) break;
    if (are_seen_[process] && has_come(process, phase) && lives(process)) return;
  }
  for (const int process : processes_N_)
    if (are_seen_[process] && !has_come(process, phase) && lives(process)) end(process);
}

/// Kills a process that hangs: it must not write anything any more.
void RankPlaces::end(int process) {
  const cpu::Peer& peer = peers_[static_cast<size_t>(process)];
  log::error("dist.mpi",
             fmt::format("process {} hangs: it is killed, and its rank counts as lost", peer.pid));
  (void)::kill(peer.pid, SIGKILL);
  while (lives(process)) std::this_thread::sleep_for(kLook);
  const std::lock_guard lock(mutex_);
  causes_[process] = kHung;
}

bool RankPlaces::are_on_one_host(int process, int other) const {
  const cpu::Peer &a = peers_[process], &b = peers_[other];
  return a.boot_id == b.boot_id && a.pid_space == b.pid_space;
}

/// Returns a free spare for the place of a lost process, on the same host if possible; -1: none.
int RankPlaces::spare_for(int lost, const std::vector<int>& processes_N) const {
  int found = -1;
  for (int spare = 0; spare < static_cast<int>(peers_.size()); ++spare) {
    const bool is_taken =
        std::find(processes_N.begin(), processes_N.end(), spare) != processes_N.end();
    if (is_taken || !lives(spare)) continue;
    if (are_on_one_host(spare, lost)) return spare;
    if (found < 0) found = spare;
  }
  return found;
}

/// Puts living spares in the places of lost processes. Empty if there are too few.
std::vector<int> RankPlaces::decide() {
  std::vector<int> processes_N = processes_N_;
  for (size_t rank = 0; rank < processes_N.size(); ++rank) {
    const int lost = processes_N[rank];
    if (lives(lost)) continue;
    const int spare = spare_for(lost, processes_N);
    if (spare < 0) return {};
    log::warning("dist.mpi", fmt::format("rank {} is lost: process {} on {} takes its place", rank,
                                         peers_[static_cast<size_t>(spare)].pid,
                                         peers_[static_cast<size_t>(spare)].node.data()));
    processes_N[rank] = spare;
    const std::lock_guard lock(mutex_);
    if (causes_[lost] == kHung) ++num_hung_;
  }
  return processes_N;
}

/// Tells a decision to all other living processes.
void RankPlaces::tell(const std::vector<int>& processes_N) const {
  std::vector<int> words{processes_N.empty() ? kTooFew : kGoOn, num_hung_};
  words.insert(words.end(), processes_N.begin(), processes_N.end());
  send_words(std::move(words));
}

void RankPlaces::send_words(std::vector<int> words) const {
  words.resize(static_cast<size_t>(num_ranks_) + 2);
  for (int process = 0; process < static_cast<int>(peers_.size()); ++process)
    if (process != self_ && lives(process))
      check_mpi(MPI_Send(words.data(), static_cast<int>(words.size()), MPI_INT, process,
                         kTags * round_ + kDecision, talk_.get()),
                "MPI_Send");
}

/// Returns a rank's process that lives, as far as is known, and has not come to this phase; -1: all
/// have.
int RankPlaces::late_one(Phase phase) const {
  for (const int process : processes_N_)
    if (lives(process) && !has_come(process, phase)) return process;
  return -1;
}

void RankPlaces::end_late(double patience_s) {
  const Clock::time_point start = Clock::now();
  while (true) {
    listen();
    say_lost(kKnows, patience_s);
    fence(kKnows, patience_s);
    say_lost(kKnows, patience_s);  // others cannot see the end of those that were killed just now
    const int late = late_one(kKnows);
    if (late < 0) return;
    if (Clock::now() - start > longest_agreement(patience_s)) give_up(late);
    std::this_thread::sleep_for(kLook);
  }
}

void RankPlaces::replace_lost(double patience_s) {
  std::vector<int> processes_N;
  int decider = -1;
  Clock::time_point decides_since;
  while (true) {
    listen();
    say_lost(kIsReady, patience_s);
    fence(kIsReady, patience_s);
    const int first = first_living();
    if (first != std::exchange(decider, first)) decides_since = Clock::now();
    const int late = decider == self_ ? late_one(kIsReady) : decider;
    if (late < 0) {
      processes_N = decide();
      tell(processes_N);
      break;
    }
    if (decider != self_ && hear_decision(&processes_N)) break;
    if (Clock::now() - decides_since > longest_agreement(patience_s)) give_up(late);
    std::this_thread::sleep_for(kLook);
  }
  if (processes_N.empty())
    throw Error(ExitCode::kUnavailable, "dist.mpi",
                "a rank is lost, and no spare process is left to take its place");
  form(processes_N);
}

/// Kills a process that has not answered. Throws Error(kUnavailable) if it is on another host: it
/// may still live, and two processes must never have one rank.
void RankPlaces::give_up(int process) {
  if (are_seen_[process]) return end(process);
  throw Error(ExitCode::kUnavailable, "dist.mpi",
              fmt::format("process {} on {} does not answer: no other process takes its place",
                          peers_[process].pid, peers_[process].node.data()));
}

/// Creates the communicator of these processes, by their messages alone.
void RankPlaces::form(const std::vector<int>& processes_N) {
  // A process that is lost meanwhile leaves the others in this call.
  const Deadline limit(kLongestForming, [] {
    static_cast<void>(MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::kUnavailable)));
    std::_Exit(static_cast<int>(ExitCode::kUnavailable));
  });
  MPI_Group all = MPI_GROUP_NULL, part = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(talk_.get(), &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, num_ranks_, processes_N.data(), &part), "MPI_Group_incl");
  MPI_Comm ranks = MPI_COMM_NULL;
  check_mpi(MPI_Comm_create_group(talk_.get(), part, kTags * round_ + kForm, &ranks),
            "MPI_Comm_create_group");
  (void)MPI_Group_free(&part);
  (void)MPI_Group_free(&all);
  ranks_ = std::make_unique<OwnedComm>(ranks);
  follow(processes_N);
}

void RankPlaces::end_world() {
  if (!have_spares() || end_) return;
  const Clock::time_point start = Clock::now();
  const auto wait_until = [&](const auto& is_over) {
    while (!is_over() && Clock::now() - start < kLongestForming) std::this_thread::sleep_for(kLook);
  };
  const int first = processes_N_.front();
  if (first != self_) {
    say_lost(kIsReady, 0, first);
    std::vector<int> unused;
    wait_until([&] { return hear_decision(&unused) || !lives(first); });
    return;
  }
  // A loss may be known on its host alone.
  wait_until([&] {
    listen();
    return late_one(kIsReady) < 0;
  });
  end_ = any_lost() || round_ > 0 ? kEndAfterLoss : kEnd;
  send_words({*end_, num_hung_});
}

}  // namespace lockstep::dist::mpi
