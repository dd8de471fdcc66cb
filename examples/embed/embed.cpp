// lockstepd with a look into the run: every 100 steps rank 0 prints the norm of one layer's
// weights.
//   launch/mpirun.sh 2 build/default/examples/embed/embed --config configs/digits.yaml

#include <cstdio>

#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include "daemon/lockstepd.h"
#include "dist/process_info.h"

namespace {

constexpr int64_t kEverySteps = 100;
constexpr std::string_view kParam = "blocks.1.conv.weight";

void print_norm(int64_t step, const lockstep::model::Model& model) {
  for (const lockstep::Param& param : model.params()) {
    if (param.name != kParam) continue;
    const double norm = at::linalg_vector_norm(param.tensor.detach()).item<double>();
    fmt::print("step {}: norm of {} {:.6f}\n", step, param.name, norm);
    std::fflush(stdout);  // under mpirun it is a pipe
  }
}

}  // namespace

int main(int argc, char** argv) {
  // MPI is not started yet: the launcher's variables tell the rank.
  const bool is_first = lockstep::dist::read_process_info().rank == 0;
  return lockstep::daemon::lockstepd_main(argc, argv,
                                          [=](int64_t step, lockstep::model::Model& model) {
                                            // Every rank comes here before every step. Looking
                                            // needs no other rank, so one may do it alone; a change
                                            // to the model must be made by all of them, equally.
                                            if (is_first && step % kEverySteps == 0)
                                              print_norm(step, model);
                                          });
}
