#include "launch/supervise/spare.h"

#include <utility>

#include <fmt/format.h>

#include "base/log.h"

// Spare ranks have loaded their program and run file, so a restart saves that time.
namespace lockstep::launch {
namespace {

// Spares that end on their own have a lasting fault; do not start them forever.
constexpr int kMaxLost = 3;

}  // namespace

void Spare::begin(const std::vector<std::string>& command, const Child::Variables& variables) {
  if (num_lost_ >= kMaxLost || waits()) return;
  command_ = command;
  mpirun_ = std::make_unique<Child>(command, variables, Child::Input::kPipe);
}

bool Spare::waits() {
  if (!mpirun_) return false;
  const std::optional<int> code = mpirun_->poll();
  if (!code) return true;
  ++num_lost_;
  log::warning("launch", fmt::format("the spare ranks ended with {} before they were needed{}: {}",
                                     *code, num_lost_ < kMaxLost ? "" : "; none are started again",
                                     mpirun_->read_errors()));
  mpirun_.reset();
  return false;
}

std::unique_ptr<Child> Spare::take(const std::vector<std::string>& command) {
  if (!waits()) return nullptr;
  if (command != command_) {  // for other hosts than now: closing their input ends them
    mpirun_.reset();
    return nullptr;
  }
  mpirun_->tell("go\n");
  return std::exchange(mpirun_, nullptr);
}

}  // namespace lockstep::launch
