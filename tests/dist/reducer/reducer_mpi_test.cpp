#include <gtest/gtest.h>

#include "dist/mpi/world.h"
#include "tests/dist/reducer/reducer_contract.h"
#include "tests/support/mpi_world.h"

namespace lockstep::dist {
namespace reducer_mpi_test {

TEST(MpiReducer, AllWaysGiveTheSameBits) {
  const auto comm = tests::mpi_world().make_communicator();
  tests::check_reducer_ways(*comm);
}

}  // namespace reducer_mpi_test
}  // namespace lockstep::dist
