// The communicator contract over real NCCL, rank r on GPU r of its node. Skips itself where a rank
// has no GPU, unless NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share one (NCCL 2.30 or later).
#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "dist/nccl/load_nccl.h"
#include "tests/dist/communicator_contract.h"
#include "tests/support/mpi_world.h"

namespace lockstep::dist {
namespace nccl_test {

TEST(NcclCommunicator, KeepsTheContract) {
  const ProcessInfo& info = tests::mpi_world().process_info();
  const auto control = tests::mpi_world().make_communicator();
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool shares = text != nullptr && std::string_view(text) == "1";
  const auto num_gpus = static_cast<int>(nccl_device_ids().size());
  const int gpu = shares && num_gpus > 0 ? info.local_rank % num_gpus : info.local_rank;
  if (any_of(*control, gpu >= num_gpus)) GTEST_SKIP() << "not every rank has a GPU of its own";
  const auto comm = make_nccl_communicator(*control, gpu, 60);
  EXPECT_TRUE(comm->device().is_cuda());
  tests::check_communicator_contract(*comm, false);
}

}  // namespace nccl_test
}  // namespace lockstep::dist
