#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "tests/dist/communicator_contract.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace communicator_test {

TEST(SelfCommunicator, KeepsTheContract) {
  SelfCommunicator comm;
  tests::check_communicator_contract(comm, true);
}

class ThreadWorldContract : public ::testing::TestWithParam<int> {};

TEST_P(ThreadWorldContract, IsKept) {
  tests::run_ranks(GetParam(),
                   [](Communicator& comm) { tests::check_communicator_contract(comm, true); });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ThreadWorldContract, ::testing::Values(1, 2, 3, 4));

}  // namespace communicator_test
}  // namespace lockstep::dist
