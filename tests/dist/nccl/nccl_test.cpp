// The communicator contract over real NCCL, rank r on GPU r of its node. Skips itself where a rank
// has no GPU.
#include <gtest/gtest.h>

#include "dist/agree.h"
#include "dist/nccl/load_nccl.h"
#include "tests/dist/communicator_contract.h"
#include "tests/support/mpi_world.h"

namespace lockstep::dist {
namespace nccl_test {

TEST(NcclCommunicator, KeepsTheContract) {
  const ProcessInfo& info = tests::mpi_world().process_info();
  const auto control = tests::mpi_world().make_communicator();
  const bool lacks_gpu = num_nccl_devices() <= info.local_rank;
  if (any_of(*control, lacks_gpu)) GTEST_SKIP() << "not every rank has a GPU of its own";
  const auto comm = make_nccl_communicator(*control, info.local_rank, 60);
  EXPECT_TRUE(comm->device().is_cuda());
  tests::check_communicator_contract(*comm, false);
}

}  // namespace nccl_test
}  // namespace lockstep::dist
