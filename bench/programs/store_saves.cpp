// Saves and restores of 1 GB of float32 by the ranks of mpirun, for bench/store:
//
//   store_saves save PREFIX      save under number 1; seconds until it is committed, and until all
//                                ranks have sent their bytes
//   store_saves train PREFIX     save while steps are taken; seconds that the steps lose to it
//   store_saves restore PREFIX   on every rank, checksums verified; seconds
//
// Rank 0 prints "result SECONDS". Every rank holds all values, as in data parallelism.
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "dist/mpi/world.h"
#include "remote/object_store.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kNumTensors = 32, kNumElements = 7'812'500;  // 1 GB of float32

template <typename Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void require_ok(const checkpoint::SaveResult& result) { check(result.ok, result.error); }

/// Takes `num_steps` steps of about 20 ms, or steps until `is_done` holds on all ranks. Returns
/// their number.
int64_t take_steps(dist::Communicator& ranks, int64_t num_steps,
                   const std::function<bool()>& is_done) {
  const at::Tensor weights = at::randn({512, 512});
  at::Tensor sums = at::zeros({512, 512});
  int64_t taken = 0;
  while (taken < num_steps) {
    for (int i = 0; i < 6; ++i) sums = at::mm(weights, weights);
    ranks.all_reduce(sums, dist::ReduceOp::kSum)->wait();
    ++taken;
    if (!dist::any_of(ranks, !is_done())) break;
  }
  return taken;
}

/// Returns the seconds that steps lose to a save.
double lost_s(dist::Communicator& ranks, checkpoint::Saver& saver, const StateList& state) {
  constexpr int64_t kNumSteps = 100, kNoLimit = int64_t{1} << 40;
  const auto never = [] { return false; };
  // Also gives prepare() time to finish.
  take_steps(ranks, kNumSteps, never);
  const double step_s =
      seconds_of([&] { take_steps(ranks, kNumSteps, never); }) / double{kNumSteps};
  int64_t taken = 0;
  const double all_s = seconds_of([&] {
    saver.begin(state, 1);
    taken = take_steps(ranks, kNoLimit, [&] { return saver.is_done(); });
  });
  require_ok(saver.wait());
  return all_s - static_cast<double>(taken) * step_s;
}

void run(const std::string& command, const std::string& prefix) {
  dist::mpi::World world;
  const std::unique_ptr<dist::Communicator> ranks = world.make_communicator();
  const std::unique_ptr<dist::Communicator> save_ranks = ranks->split(0, ranks->rank());
  remote::add_stores();
  StateList state;
  at::manual_seed(1);
  for (int64_t i = 0; i < kNumTensors; ++i)
    state.push_back(
        {.key = "model/w" + std::to_string(i),
         .tensor = command == "restore" ? at::zeros({kNumElements}) : at::randn({kNumElements}),
         .steady = true});
  std::chrono::steady_clock::time_point begun, sent;
  checkpoint::Saver saver({.prefix = prefix,
                           .keep_checkpoint_max = -1,
                           .at_phase =
                               [&](checkpoint::SavePhase phase) {
                                 if (phase == checkpoint::SavePhase::kEntriesAgreed)
                                   sent = std::chrono::steady_clock::now();
                               }},
                          *save_ranks);
  if (command == "train") saver.prepare(state);
  ranks->barrier();
  double seconds = 0;
  begun = std::chrono::steady_clock::now();
  if (command == "save") seconds = seconds_of([&] { require_ok(saver.save(state, 1)); });
  if (command == "train") seconds = lost_s(*ranks, saver, state);
  if (command == "restore")
    seconds = seconds_of([&] {
      (void)checkpoint::restore_on_all(prefix + "-1", state, *ranks);
      ranks->barrier();
    });
  if (ranks->rank() == 0)
    std::printf("result %f %f\n", seconds, std::chrono::duration<double>(sent - begun).count());
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  const c10::InferenceMode no_gradients;
  at::set_num_threads(1);
  if (argc != 3) return 64;
  lockstep::bench::run(argv[1], argv[2]);
  return 0;
}
