#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "dist/agree.h"
#include "dist/mpi/world.h"
#include "tests/dist/communicator_contract.h"
#include "tests/support/mpi_world.h"

namespace lockstep::dist {
namespace {

TEST(MpiCommunicator, KeepsTheContract) {
  const auto comm = tests::mpi_world().make_communicator();
  tests::check_communicator_contract(*comm, true);
}

TEST(MpiCommunicator, SendsLargeTensorsInChunks) {
  const auto comm = tests::mpi_world().make_communicator();
  tests::check_large_tensors(*comm);
}

/// Each communicator has its own messages: two threads may each use one at the same time.
TEST(MpiCommunicator, TwoMayBeUsedAtOnceByTwoThreads) {
  const auto one = tests::mpi_world().make_communicator(),
             other = tests::mpi_world().make_communicator();
  const auto sum_often = [](Communicator& comm, int64_t factor) {
    const int64_t num_ranks = comm.world_size();
    for (int i = 0; i < 200; ++i)
      EXPECT_EQ(sum_of(comm, factor * comm.rank() + i),
                factor * num_ranks * (num_ranks - 1) / 2 + i * num_ranks);
  };
  std::thread beside([&] { sum_often(*other, 1000); });
  sum_often(*one, 7);
  beside.join();
}

TEST(MpiWorld, KnowsEveryRanksPlace) {
  const ProcessInfo& info = tests::mpi_world().process_info();
  const auto comm = tests::mpi_world().make_communicator();
  EXPECT_EQ(info.rank, comm->rank());
  EXPECT_EQ(info.world_size, comm->world_size());
  // Under this test's launcher all ranks run here.
  EXPECT_EQ(info.local_rank, info.rank);
  EXPECT_EQ(info.local_world_size, info.world_size);
  EXPECT_EQ(info.num_nodes, 1);
  EXPECT_NO_THROW(require_equal(*comm, "node", info.node));
  EXPECT_NO_THROW(require_equal(*comm, "MPI", mpi::World::library_version()));
}

TEST(MpiWorld, AgreesWithWhatTheLauncherSaidBeforehand) {
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) GTEST_SKIP() << "not started by mpirun";
  const ProcessInfo before = read_process_info();
  const ProcessInfo& info = tests::mpi_world().process_info();
  EXPECT_EQ(before.rank, info.rank);
  EXPECT_EQ(before.world_size, info.world_size);
  EXPECT_EQ(before.local_rank, info.local_rank);
  EXPECT_EQ(before.local_world_size, info.local_world_size);
}

}  // namespace
}  // namespace lockstep::dist
