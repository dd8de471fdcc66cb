// Headers by their installed path; recal, dist and checkpoint without the daemon.
#include <cstdio>

#include <ATen/ops/ones.h>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/dist/communicator.h"
#include "lockstep/recal/schedule/modifier_table.h"

int main() {
  lockstep::dist::SelfCommunicator alone;
  at::Tensor values_K = at::ones({3});
  alone.all_reduce(values_K, lockstep::dist::ReduceOp::kSum)->wait();
  lockstep::checkpoint::Checkpoint checkpoint({{"values", values_K}});
  checkpoint.restore(checkpoint.save("saved/model.ckpt")).assert_consumed();
  std::printf("%d rank, sum %.0f, save %d, %zu modifiers\n", alone.world_size(),
              values_K.sum().item<double>(), static_cast<int>(checkpoint.save_counter()),
              lockstep::recal::modifier_kinds().names().size());
}
