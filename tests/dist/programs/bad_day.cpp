// One rank of a world with a fault; tests/dist/programs/bad_days_test.py starts it.
//     bad_day WHAT VICTIM WAY TIMEOUT_S REPORT
// All ranks reduce a large tensor a few times, then the victim
//     stop      is stopped (SIGSTOP) between two calls
//     stop-amid is stopped by another thread while it calls without end
//     kill      is killed (SIGKILL)
//     size      brings a tensor of another size
//     call      makes another call
//     none      no fault: all continue without end
// or all ranks train a small network, and in the midst of a step the victim
//     stop-step, kill-step    is stopped, killed
//     stop-share, kill-share  the same, where each rank updates its share of the weights
// or all ranks gather large tensors, and between two calls the victim
//     stop-gather, kill-gather, call-gather  is stopped, killed, makes another call
// and a rank that notices it appends the error to the file REPORT, since mpirun loses last lines
// when it is aborted, and ends the world with its exit code.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <unistd.h>

#include "base/error.h"
#include "dist/mpi/world.h"
#include "dist/reducer/gradient_reducer.h"
#include "tests/dist/reducer/flat_model.h"

namespace lockstep {
namespace {

constexpr int64_t kItems = 1'000'003;

using dist::Communicator;
using dist::ReduceOp;

dist::cpu::CommunicatorOptions options_for(const std::string& way, double timeout_s,
                                           int num_ranks) {
  dist::cpu::CommunicatorOptions options{.shared_window = way != "messages" && way != "tree",
                                         .timeout_s = timeout_s,
                                         .hosts_N = {},
                                         .direct_ranks = way == "tree" ? 1 : 16};
  for (int r = 0; way == "hosts" && r < num_ranks; ++r) options.hosts_N.push_back(r / 2);
  return options;
}

void reduce(Communicator& comm, int64_t num_items) {
  comm.all_reduce(at::ones({num_items}, at::kFloat), ReduceOp::kSum)->wait();
}

void reduce_without_end(Communicator& comm) {
  for (;;) reduce(comm, kItems);
}

void have_a_bad_day(Communicator& comm, const std::string& what) {
  if (what == "stop") raise(SIGSTOP);
  if (what == "kill") raise(SIGKILL);
  if (what == "size") reduce(comm, kItems + 1);
  if (what == "call") comm.barrier();
  if (what == "stop-amid")
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      kill(getpid(), SIGSTOP);
    }).detach();
  reduce_without_end(comm);
}

void gather_without_end(Communicator& comm, const std::string& what, bool is_victim) {
  const at::Tensor piece_K = at::ones({kItems}, at::kFloat);
  const at::Tensor all_NK = at::empty({kItems * comm.world_size()}, at::kFloat);
  for (int i = 0;; ++i) {
    if (is_victim && i == 3) {
      if (what.starts_with("call")) comm.barrier();
      raise(what.starts_with("stop") ? SIGSTOP : SIGKILL);
    }
    comm.all_gather(all_NK, piece_K)->wait();
  }
}

void train_without_end(Communicator& comm, const std::string& what, bool is_victim) {
  tests::FlatModel model(4, 100);
  dist::GradientReducer reducer(comm, model.buffers, model.params,
                                {.bucket_bytes = 40'000,
                                 .overlap = "true",
                                 .sparse_allreduce = "never",
                                 .shard_optimizer = what.ends_with("-share")});
  const at::Tensor inputs_BX = at::ones({2, 100});
  for (int step = 0;; ++step) {
    model.zero_grads();
    reducer.prepare_for_backward();
    const at::Tensor loss = model.forward(inputs_BX).sum();
    if (is_victim && step == 3) raise(what.starts_with("stop") ? SIGSTOP : SIGKILL);
    loss.backward();
    reducer.finish({.loss_sum = 1, .num_samples = 2});
    reducer.gather_values();
  }
}

int run(const std::vector<std::string>& arguments) {
  dist::mpi::World world;
  try {
    constexpr double kTooLong_s = 1000;
    const auto comm = world.make_communicator(
        options_for(arguments[2], kTooLong_s, world.process_info().world_size));
    check(comm->set_timeout(std::stod(arguments[3])) == kTooLong_s, "the limit before");
    for (int i = 0; i < 2; ++i) reduce(*comm, kItems);
    if (comm->rank() == 0) std::ofstream(arguments[4], std::ios::app) << "all well so far\n";
    reduce(*comm, kItems);  // after it the line exists, whichever rank ends first
    const std::string& what = arguments[0];
    const bool is_victim = comm->rank() == std::stoi(arguments[1]);
    if (what.ends_with("-step") || what.ends_with("-share"))
      train_without_end(*comm, what, is_victim);
    if (what.ends_with("-gather")) gather_without_end(*comm, what, is_victim);
    have_a_bad_day(*comm, is_victim ? what : "none");
  } catch (const Error& error) {
    std::ofstream(arguments[4], std::ios::app)
        << "rank " + std::to_string(world.process_info().rank) + " exits with " +
               std::to_string(static_cast<int>(error.code())) + ": " + error.what() + "\n";
    world.abort(static_cast<int>(error.code()));
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 6) return 64;
  return lockstep::run({argv + 1, argv + argc});
}
