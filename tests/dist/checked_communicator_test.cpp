#include "dist/communicator.h"

#include <functional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/dist/communicator_contract.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace checked_communicator_test {

using ::testing::HasSubstr;

std::unique_ptr<Communicator> checked(Communicator& comm) {
  return std::make_unique<CheckedCommunicator>(comm.split(0, comm.rank()),
                                               comm.split(0, comm.rank()));
}

TEST(CheckedCommunicator, KeepsTheContract) {
  tests::run_ranks(3, [](Communicator& world) {
    const auto comm = checked(world);
    tests::check_communicator_contract(*comm, true);
  });
}

/// Rank 1 makes `other` where the others make `usual`, as the second call; every rank's error.
void expect_named(const std::function<void(Communicator&)>& usual,
                  const std::function<void(Communicator&)>& other, const std::string& what) {
  tests::run_ranks(3, [&](Communicator& world) {
    const auto comm = checked(world);
    comm->barrier();
    try {
      (world.rank() == 1 ? other : usual)(*comm);
      ADD_FAILURE() << "nobody noticed: " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDisagree);
      EXPECT_TRUE(error.on_every_rank());
      EXPECT_THAT(error.what(), HasSubstr("collective 2 of the gradients differs: ranks 0, 2: "));
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  });
}

std::function<void(Communicator&)> reduces(int64_t size, at::ScalarType type = at::kFloat,
                                           ReduceOp op = ReduceOp::kSum) {
  return [=](Communicator& comm) { comm.all_reduce(at::ones({size}, type), op)->wait(); };
}

TEST(CheckedCommunicator, NamesTheRankThatMakesAnotherCall) {
  const auto broadcast_from = [](int root) {
    return [root](Communicator& comm) { comm.broadcast(at::ones({4}), root); };
  };
  expect_named(reduces(4), reduces(5), "rank 1: all_reduce (sum) of 5 Float");
  expect_named(reduces(4), reduces(4, at::kDouble), "rank 1: all_reduce (sum) of 4 Double");
  expect_named(reduces(4), reduces(4, at::kFloat, ReduceOp::kMax),
               "rank 1: all_reduce (max) of 4 Float");
  expect_named(broadcast_from(0), broadcast_from(2), "rank 1: broadcast from rank 2 of 4 Float");
  expect_named(
      reduces(4), [](Communicator& comm) { comm.barrier(); }, "rank 1: barrier");
  expect_named(
      [](Communicator& comm) { comm.all_gather(at::ones({6}), at::ones({2}))->wait(); },
      [](Communicator& comm) { comm.reduce_scatter(at::ones({2}), at::ones({6}))->wait(); },
      "rank 1: reduce_scatter of 6 Float");
}

}  // namespace checked_communicator_test
}  // namespace lockstep::dist
