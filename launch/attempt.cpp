#include "launch/attempt.h"

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/log.h"

// Test of hosts, and one start of mpirun.
namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds kLook{20};
constexpr double kProbeKill_s = 5;

constexpr std::chrono::milliseconds kEachSecond{1000};
constexpr std::chrono::milliseconds kTurn{200};
constexpr std::chrono::milliseconds kShortTurn{10};  ///< while mpirun ends after its ranks
/// Longest time for mpirun after its last rank here: it waits forever for a host behind a cut link.
constexpr std::chrono::seconds kMpirunPatience{10};
/// Time after which ranks that are all on other hosts are assumed to handle signals.
constexpr std::chrono::seconds kRanksBegin{15};

constexpr const char* kOfRanks = "OMPI_COMM_WORLD_RANK";  ///< environment variable of every rank

}  // namespace

std::set<std::string> unreachable(const std::vector<Host>& hosts,
                                  const std::vector<std::string>& mpirun_arguments,
                                  const Child::Variables& variables, double limit_s) {
  std::vector<std::unique_ptr<Child>> probes;
  // Without ssh access or with a dead daemon, not even `true` ends.
  for (const Host& host : hosts)
    probes.push_back(std::make_unique<Child>(mpirun_command({.num_ranks = 1,
                                                             .hosts = {{host.name, 1}},
                                                             .program = {"true"},
                                                             .more = mpirun_arguments,
                                                             .is_root = ::geteuid() == 0}),
                                             variables));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  const auto is_going_on = [](const auto& probe) {
    // Read the output, so that a full pipe cannot block mpirun.
    (void)probe->read_errors();
    return !probe->poll();
  };
  while (std::any_of(probes.begin(), probes.end(), is_going_on) &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kLook);
  std::set<std::string> silent;
  for (size_t i = 0; i < hosts.size(); ++i)
    if (probes[i]->poll() != 0) silent.insert(hosts[i].name);
  // Probes of hosts that do not answer are still running.
  (void)kill_descendants(kProbeKill_s);
  return silent;
}

// One start of mpirun. The loop of run() waits for signals, for mpirun's output and for the end of
// ranks on this host, and reacts to each.

Attempt::Attempt(std::unique_ptr<Child> mpirun, double grace_s, SignalQueue* signals, Wish* wish)
    : grace_s_(grace_s), signals_(*signals), wish_(*wish), mpirun_(std::move(mpirun)) {}

int Attempt::run() {
  std::optional<int> code;
  while (!(code = mpirun_->poll())) {
    if (wish_.to_end) {
      // Includes mpirun, whose exit code poll() would otherwise collect.
      (void)kill_descendants(kKillPatience_s);
      code = 128 + SIGKILL;
      break;
    }
    wait_a_turn();
    obey();
    pass_on_errors();
    look_after_mpirun();
  }
  // mpirun has ended, but ranks may remain, for example after its SIGKILL.
  if (!kill_descendants(kKillPatience_s))
    log::warning("launch", "a process of this run cannot be ended; ps shows it");
  // The last output may have arrived since the previous turn.
  pass_on_errors();
  return *code;
}

void Attempt::wait_a_turn() {
  const bool is_at_the_end = ranks_here_.are_all_over();
  ranks_here_.wait({{signals_.descriptor(), POLLIN, 0}, {mpirun_->errors(), POLLIN, 0}},
                   static_cast<int>((is_at_the_end ? kShortTurn : kTurn).count()));
  // mpirun sleeps for its grace (odls_base_sigkill_timeout) before SIGTERM and again before
  // SIGKILL, even if no rank is left. SIGCHLD interrupts such a sleep and has no other effect.
  if (ranks_here_.are_all_over()) mpirun_->signal(SIGCHLD);
}

void Attempt::obey() {
  for (const int signal_number : signals_.take()) {
    if (signal_number == SIGUSR2) ask_to_save();
    if (signal_number == SIGUSR1) {
      wish_.to_stop = true;
      tell_ranks_to_stop();
    }
    if (signal_number == SIGINT && kill_at_) wish_.to_end = true;
    if (signal_number == SIGTERM || signal_number == SIGHUP || signal_number == SIGINT)
      ask_to_stop(grace_s_);
  }
  // The grace may end without any further signal.
  if (kill_at_ && Clock::now() >= *kill_at_) wish_.to_end = true;
}

void Attempt::ask_to_stop(double within_s) {
  // Further requests do not extend the grace.
  if (kill_at_) return;
  wish_.to_stop = true;
  kill_at_ = Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(within_s));
  log::info("launch", fmt::format("stop requested: the ranks have {} s to save and stop; a second "
                                  "Ctrl-C (SIGINT) ends them now",
                                  within_s));
  tell_ranks_to_stop();
}

/// Sends SIGUSR1 to mpirun, which forwards it to the existing ranks. Before they are started, it
/// reaches none, so look_after_mpirun() repeats it.
void Attempt::tell_ranks_to_stop() {
  mpirun_->signal(SIGUSR1);
  are_told_ = had_ranks_ || !descendants_with(kOfRanks).empty();
}

void Attempt::ask_to_save() {
  is_save_asked_ = true;
  look_again_at_ = Clock::now();
}

/// Sends SIGUSR2 to mpirun once all ranks can handle it. Without their handlers, ranks and mpirun
/// would die of it. Ranks on other hosts are not visible: they start together with those of this
/// host, or soon if this host has none.
void Attempt::pass_on_save(const std::vector<pid_t>& ranks) {
  const auto is_rank = [&](pid_t pid) {
    return std::find(ranks.begin(), ranks.end(), pid) != ranks.end();
  };
  const auto hears = [&](pid_t pid) {
    return is_rank(parent_of(pid).value_or(0)) ||
           hears_signal(pid, SIGUSR2);  // helper process of a rank
  };
  const bool are_begun = had_ranks_ || Clock::now() - began_at_ > kRanksBegin;
  if (!is_save_asked_ || !are_begun || !hears(mpirun_->pid())) return;
  if (!std::all_of(ranks.begin(), ranks.end(), hears)) return;
  is_save_asked_ = false;
  mpirun_->signal(SIGUSR2);
}

void Attempt::pass_on_errors() {
  if (mpirun_->errors() < 0) return;
  const std::string text = mpirun_->read_errors();
  if (!text.empty()) log::print(text);
  messages_.read(text);
}

void Attempt::look_after_mpirun() {
  const Clock::time_point now = Clock::now();
  if (now < look_again_at_) return;
  look_again_at_ = now + (had_ranks_ && !is_save_asked_ ? kEachSecond : kTurn);
  reap_orphans({mpirun_->pid()});
  const std::vector<pid_t> ranks = descendants_with(kOfRanks);
  for (const pid_t rank : ranks) ranks_here_.add(rank);
  const bool has_ranks = !ranks.empty();
  had_ranks_ = had_ranks_ || has_ranks;
  pass_on_save(ranks);
  if (has_ranks && wish_.to_stop && !are_told_) tell_ranks_to_stop();
  if (has_ranks || !had_ranks_) {
    // Ranks are there, or not started yet: mpirun may take its time.
    ranks_gone_at_.reset();
    return;
  }
  if (!ranks_gone_at_) ranks_gone_at_ = now;
  if (now - *ranks_gone_at_ < kMpirunPatience) return;
  log::warning(
      "launch",
      fmt::format("mpirun did not end within {} s after its last rank on this host: killing it",
                  kMpirunPatience.count()));
  mpirun_->signal(SIGKILL);
  was_stuck_ = true;
}

}  // namespace lockstep::launch
