// lockstepd with one fault. Rank LOCKSTEP_TEST_RANK ("all": every rank) does LOCKSTEP_TEST_ACTION
// before the step that follows LOCKSTEP_TEST_STEP updates; or, where LOCKSTEP_TEST_PHASE is set (a
// checkpoint::SavePhase as a number), in the thread that saves, when it has reached that phase
// LOCKSTEP_TEST_STEP times ("every": each time):
//   alter              sets one of its weights to 0 by itself, as a broken memory cell would; so
//                      the next mask of that rank alone prunes it (steps only)
//   revive             sets its first pruned weight to 1, which no update may do (steps only)
//   kill | usr1 | usr2 | term sends itself SIGKILL, SIGUSR1, SIGUSR2 or SIGTERM
//   usr1_twice         SIGUSR1, and again 10 ms later
//   every_signal       SIGHUP, SIGINT, SIGTERM, SIGUSR1 once, SIGUSR2 twice
//   stop               SIGSTOP: hangs until somebody continues or kills it
//   nap_and_stop       half a second later, when the others wait for it
//   sleep | nap        stands still for two seconds, for a tenth of one
//   hang               stands still for good
//   throw              throws an unexpected error (steps only)
//   fail               has a fault of the disk (phases only)

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include "base/error.h"
#include "base/process.h"
#include "daemon/lockstepd.h"
#include "dist/process_info.h"
#include "metrics/step_metrics.h"
#include "model/networks/model_table.h"

namespace {

using lockstep::checkpoint::SavePhase;
using lockstep::model::Model;
using std::chrono::milliseconds;

std::string text_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

void alter_one_weight(Model& model) {
  const at::NoGradGuard no_grad;
  for (const lockstep::Param& param : model.params())
    if (param.name == "blocks.1.conv.weight") param.tensor.view(-1)[37].fill_(0.0);
}

void revive_one_weight(Model& model) {
  const at::NoGradGuard no_grad;
  for (const lockstep::Param& param : model.params())
    if (param.name == "blocks.1.conv.weight") {
      const at::Tensor all = param.tensor.view(-1);
      for (int64_t i = 0; i < all.numel(); ++i)
        if (all[i].item<float>() == 0) return (void)all[i].fill_(1.0);
    }
}

void signal_twice() {
  (void)std::raise(SIGUSR1);
  std::this_thread::sleep_for(milliseconds(10));
  (void)std::raise(SIGUSR1);
}

void every_signal() {
  for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGUSR2})
    (void)std::raise(number);
}

/// Adds rows in main(), like a user's own program, where no caller catches errors.
void add_rows(const std::string& action) {
  if (action == "two_networks")
    for (int i = 0; i < 2; ++i)
      lockstep::model::model_types().add(
          {.name = "mine",
           .read = [](lockstep::ConfigReader*) -> lockstep::model::MakeModel { return {}; }});
  if (action == "taken_metric")
    lockstep::metrics::step_metrics().add(
        {.name = "lockstep_step", .help = "taken", .value = [](const auto&) { return 1; }});
}

const std::map<std::string, std::function<void()>> kActions = {
    {"alter", [] {}},
    {"revive", [] {}},
    {"two_networks", [] {}},
    {"taken_metric", [] {}},
    {"kill", [] { (void)std::raise(SIGKILL); }},
    {"usr1", [] { (void)::kill(::getpid(), SIGUSR1); }},
    {"usr2", [] { (void)std::raise(SIGUSR2); }},
    {"usr1_twice", signal_twice},
    {"term", [] { (void)std::raise(SIGTERM); }},
    {"every_signal", every_signal},
    {"stop", [] { (void)::kill(::getpid(), SIGSTOP); }},
    {"nap_and_stop",
     [] {
       std::this_thread::sleep_for(milliseconds(500));
       (void)::kill(::getpid(), SIGSTOP);
       std::this_thread::sleep_for(milliseconds(500));  // the stop reaches other threads first
     }},
    {"sleep", [] { std::this_thread::sleep_for(milliseconds(2000)); }},
    {"nap", [] { std::this_thread::sleep_for(milliseconds(100)); }},
    {"hang", [] { std::this_thread::sleep_for(std::chrono::hours(24)); }},
    {"throw", [] { throw std::runtime_error("made to fail"); }},
    {"fail",
     [] {
       throw lockstep::Error(lockstep::ExitCode::kIo, "files", "made to fail: no space left");
     }},
};

struct Fault {
  std::string action = text_from("LOCKSTEP_TEST_ACTION");
  std::string phase = text_from("LOCKSTEP_TEST_PHASE");
  std::string when = text_from("LOCKSTEP_TEST_STEP");
  std::function<void()> act = kActions.at(action);
  std::atomic<int> num_reached = 0;

  void at_step(int64_t step, Model& model) const {
    if (std::to_string(step) != when) return;
    if (action == "alter") alter_one_weight(model);
    if (action == "revive") revive_one_weight(model);
    act();
  }
  void at_phase(SavePhase reached) {
    if (phase.empty() || std::to_string(static_cast<int>(reached)) != phase) return;
    if (std::to_string(++num_reached) == when || when == "every") act();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string rank = text_from("LOCKSTEP_TEST_RANK");
  if (rank != "all" && rank != std::to_string(lockstep::dist::read_process_info().rank))
    lockstep::end_process(lockstep::daemon::lockstepd_main(argc, argv));
  Fault fault;
  add_rows(fault.action);
  lockstep::train::StepHook on_step;  // a hook makes each step wait for the staging before it
  if (fault.phase.empty())
    on_step = [&](int64_t step, Model& model) { fault.at_step(step, model); };
  lockstep::end_process(lockstep::daemon::lockstepd_main(
      argc, argv, on_step, [&](SavePhase phase) { fault.at_phase(phase); }));
}
