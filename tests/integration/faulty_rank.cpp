// lockstepd with one fault: before the step that follows LOCKSTEP_TEST_STEP updates, rank
// LOCKSTEP_TEST_RANK does LOCKSTEP_TEST_ACTION:
//   alter              sets one of its weights to 0 by itself, as a broken memory cell would; so
//   the
//                      next mask of that rank alone prunes it
//   kill | usr1 | term sends itself SIGKILL, SIGUSR1 or SIGTERM
//   sleep              stands still for two seconds

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include <ATen/core/grad_mode.h>

#include "daemon/lockstepd.h"
#include "dist/process_info.h"

namespace {

using lockstep::model::Model;

std::string text_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

void alter_one_weight(Model& model) {
  const at::NoGradGuard no_grad;
  for (const lockstep::Param& param : model.params())
    if (param.name == "blocks.1.conv.weight") param.tensor.view(-1)[37].fill_(0.0);
}

const std::map<std::string, std::function<void(Model&)>> kActions = {
    {"alter", alter_one_weight},
    {"kill", [](Model&) { (void)std::raise(SIGKILL); }},
    {"usr1", [](Model&) { (void)std::raise(SIGUSR1); }},
    {"term", [](Model&) { (void)std::raise(SIGTERM); }},
    {"sleep", [](Model&) { std::this_thread::sleep_for(std::chrono::seconds(2)); }},
};

}  // namespace

int main(int argc, char** argv) {
  const int own_rank = lockstep::dist::read_process_info().rank;
  const bool mine = std::to_string(own_rank) == text_from("LOCKSTEP_TEST_RANK");
  const int64_t at_step = std::stoll(text_from("LOCKSTEP_TEST_STEP"));
  const std::function<void(Model&)> act = kActions.at(text_from("LOCKSTEP_TEST_ACTION"));
  return lockstep::daemon::lockstepd_main(argc, argv, [=](int64_t step, Model& model) {
    if (mine && step == at_step) act(model);
  });
}
