// Saves and restores of 1 GB of float32 by the ranks of mpirun, for bench/store:
//
//   store_saves save PREFIX      save under number 1; seconds until it is committed
//   store_saves beside PREFIX    a save during rounds of matrix products, until the save is done:
//                                seconds that these rounds and the save's calls took longer than
//                                the rounds take without a save
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
constexpr int64_t kMatrix = 2048;

template <typename Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void require_ok(const checkpoint::SaveResult& result) { check(result.ok, result.error); }

double seconds_beside(checkpoint::Saver& saver, const StateList& state) {
  const at::Tensor left = at::randn({kMatrix, kMatrix}), right = at::randn({kMatrix, kMatrix});
  at::Tensor product = at::zeros({kMatrix, kMatrix});
  const auto compute = [&] { at::mm_out(product, left, right); };
  for (int i = 0; i < 3; ++i) compute();
  const double alone_s = seconds_of([&] {
                           for (int i = 0; i < 10; ++i) compute();
                         }) /
                         10;
  int num_rounds = 0;
  const double total_s = seconds_of([&] {
    saver.begin(state, 1);
    for (; num_rounds == 0 || !saver.is_done(); ++num_rounds) {
      compute();
      saver.wait_until_staged();
    }
    require_ok(saver.wait());
  });
  return total_s - num_rounds * alone_s;
}

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
  checkpoint::Saver saver({.prefix = prefix, .keep_checkpoint_max = -1}, *ranks);
  if (command != "restore") saver.prepare(state);
  ranks->barrier();
  double seconds = 0;
  if (command == "save") seconds = seconds_of([&] { require_ok(saver.save(state, 1)); });
  if (command == "beside") seconds = seconds_beside(saver, state);
  if (command == "restore")
    seconds = seconds_of([&] {
      (void)checkpoint::restore_on_all(prefix + "-1", state, *ranks);
      ranks->barrier();
    });
  if (ranks->rank() == 0) std::printf("result %f\n", seconds);
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
