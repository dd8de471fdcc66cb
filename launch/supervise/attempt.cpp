#include "launch/supervise/attempt.h"

#include <array>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/processes/process_tree.h"

namespace lockstep::launch {
namespace {

using std::chrono::seconds;

constexpr std::chrono::milliseconds kTurn{200};
/// mpirun waits without end for a host behind a cut link: it gets so long after its last rank here.
constexpr seconds kMpirunPatience{10};

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t num_bytes = ::write(STDERR_FILENO, text.data(), text.size());
    if (num_bytes <= 0) return;  // nobody reads it
    text.remove_prefix(static_cast<size_t>(num_bytes));
  }
}

}  // namespace

Attempt::Attempt(std::unique_ptr<Child> mpirun, double grace_s, SignalQueue* signals, Wish* wish,
                 const Spare& spare, std::function<void()> each_second)
    : grace_s_(grace_s),
      signals_(*signals),
      wish_(*wish),
      spare_(spare),
      each_second_(std::move(each_second)),
      mpirun_(std::move(mpirun)) {}

int Attempt::run() {
  std::optional<int> code;
  while (!(code = mpirun_->poll())) {
    if (wish_.to_end) {
      (void)kill_descendants(kKillPatience_s,
                             spare_.pid());  // mpirun among them, whose code poll() would want
      code = 128 + SIGKILL;
      break;
    }
    wait_a_turn();
    obey();
    pass_on_errors();
    look_after_mpirun();
  }
  if (!kill_descendants(kKillPatience_s, spare_.pid()))
    log::warning("launch", "a process of this run cannot be ended; ps shows which");
  pass_on_errors();
  return *code;
}

void Attempt::wait_a_turn() {
  std::array<pollfd, 2> sources{pollfd{signals_.descriptor(), POLLIN, 0},
                                pollfd{mpirun_->errors(), POLLIN, 0}};
  (void)::poll(sources.data(), sources.size(), static_cast<int>(kTurn.count()));
}

void Attempt::obey() {
  for (const int signal_number : signals_.take()) {
    if (signal_number == SIGUSR2) mpirun_->signal(SIGUSR2);
    if (signal_number == SIGUSR1) {
      wish_.to_stop = true;
      mpirun_->signal(SIGUSR1);
    }
    if (signal_number == SIGINT && kill_at_) wish_.to_end = true;
    if (signal_number == SIGTERM || signal_number == SIGHUP || signal_number == SIGINT)
      ask_to_stop(grace_s_);
  }
  if (kill_at_ && Clock::now() >= *kill_at_) wish_.to_end = true;
}

void Attempt::ask_to_stop(double within_s) {
  if (kill_at_) return;
  wish_.to_stop = true;
  kill_at_ = Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(within_s));
  log::info("launch", fmt::format("told to end: the ranks have {} s to save and stop; a second "
                                  "Ctrl-C (SIGINT) ends them now",
                                  within_s));
  mpirun_->signal(SIGUSR1);
}

void Attempt::pass_on_errors() {
  if (mpirun_->errors() < 0) return;
  const std::string text = mpirun_->read_errors();
  write_all(text);
  messages_.read(text);
}

void Attempt::look_after_mpirun() {
  const Clock::time_point now = Clock::now();
  if (now < look_again_at_) return;
  look_again_at_ = now + seconds(1);
  each_second_();
  const bool has_ranks = any_descendant_has("OMPI_COMM_WORLD_RANK", spare_.pid());
  had_ranks_ = had_ranks_ || has_ranks;
  if (has_ranks || !had_ranks_) {
    ranks_gone_at_.reset();
    return;
  }
  if (!ranks_gone_at_) ranks_gone_at_ = now;
  if (now - *ranks_gone_at_ < kMpirunPatience) return;
  log::warning("launch",
               fmt::format("mpirun did not end within {} s of its last rank here: it is killed",
                           kMpirunPatience.count()));
  mpirun_->signal(SIGKILL);
  was_stuck_ = true;
}

}  // namespace lockstep::launch
