// Saves and restores of 1 GB of float32 by the ranks of mpirun, for bench/store:
//
//   store_saves save PREFIX      save under number 1; seconds until it is committed, and until all
//                                ranks have sent their bytes
//   store_saves restore PREFIX   on every rank, checksums verified; seconds
//
// Rank 0 prints "result SECONDS". Every rank holds all values, as in data parallelism.
#include <chrono>
#include <cstdio>
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

void run(const std::string& command, const std::string& prefix) {
  dist::mpi::World world;
  const std::unique_ptr<dist::Communicator> ranks = world.make_communicator();
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
                          *ranks);
  if (command != "restore") saver.prepare(state);
  ranks->barrier();
  double seconds = 0;
  begun = std::chrono::steady_clock::now();
  if (command == "save") seconds = seconds_of([&] { require_ok(saver.save(state, 1)); });
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
