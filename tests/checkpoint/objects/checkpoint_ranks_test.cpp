// Checkpoint objects on several ranks: each function is collective, and what one rank cannot do,
// none has done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/restore.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace checkpoint_ranks_test {

using lockstep::tests::run_ranks;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::TemporaryFolder;

class CheckpointRanks : public ::testing::TestWithParam<int> {};

at::Tensor values(double first) {
  return at::arange(1 << 19, at::kFloat).reshape({-1, 64}) + first;
}

TEST_P(CheckpointRanks, SaveRestoreAndAddTogether) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](dist::Communicator& ranks) {
    at::Tensor weight = values(1), scale = at::full({3}, 2.0);
    Checkpoint checkpoint({{"weight", weight}, {"scale", scale}}, {.ranks = &ranks});
    EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-1");
    weight.zero_();
    EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-2");
    checkpoint.restore(folder.prefix() + "-1").assert_consumed();
    EXPECT_TRUE(at::equal(weight, values(1)));
    EXPECT_EQ(checkpoint.save_counter(), 1);

    at::Tensor other = values(9), late = at::zeros({3});
    Checkpoint growing({{"weight", other}}, {.ranks = &ranks});
    const RestoreStatus status =
        growing.restore(latest_checkpoint(folder.path(), ranks)).expect_partial();
    EXPECT_EQ(other.abs().sum().item<double>(), 0);
    growing.add("scale", late);
    EXPECT_EQ(late.sum().item<double>(), 6);
    status.assert_consumed();
  });
  EXPECT_THAT(verify(folder.prefix() + "-1"), IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(
      folder / ("model.ckpt-1.data-00000-of-0000" + std::to_string(GetParam()))));
}

TEST_P(CheckpointRanks, AStrictLoadThatOneRankCannotDoWritesOnNone) {
  const TemporaryFolder folder;
  at::Tensor saved = values(1);
  Checkpoint({{"weight", saved}}).save(folder.prefix());
  run_ranks(GetParam(), [&](dist::Communicator& ranks) {
    at::Tensor weight = values(5);
    Checkpoint checkpoint({{"weight", weight}}, {.ranks = &ranks});
    const bool is_blind = ranks.rank() == ranks.world_size() - 1;  // its folder is another one
    const std::string save = is_blind ? folder / "nowhere-1" : folder.prefix() + "-1";
    EXPECT_THROW(checkpoint.load_weights_now(save), Error);
    EXPECT_TRUE(at::equal(weight, values(5)) || ranks.world_size() == 1);
    checkpoint.load_weights_now(folder.prefix() + "-1");
    EXPECT_TRUE(at::equal(weight, saved));
  });
}

TEST_P(CheckpointRanks, AFaultOfOneRankIsThrownOnAllAndLeavesNoRestoreUnderWay) {
  const TemporaryFolder folder;
  at::Tensor saved = values(1);
  Checkpoint({{"weight", saved}}).save(folder.prefix());
  run_ranks(GetParam(), [&](dist::Communicator& ranks) {
    at::Tensor weight = values(5);
    Checkpoint checkpoint({{"weight", weight}}, {.ranks = &ranks});
    const bool is_blind = ranks.rank() == ranks.world_size() - 1;
    try {
      checkpoint.restore(is_blind ? folder / "nowhere-1" : folder.prefix() + "-1");
      ADD_FAILURE() << "one rank finds no save";
    } catch (const Error& fault) {
      EXPECT_TRUE(fault.on_every_rank());
      EXPECT_THAT(fault.what(), HasSubstr("not found"));
    }
    EXPECT_TRUE(at::equal(weight, values(5))) << "no rank has begun to write";
    EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-2");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointRanks, ::testing::Values(1, 2, 4));

TEST(CheckpointRanks, VariablesThatBecameDifferentOnTwoRanksAreRefusedWithBothForms) {
  const TemporaryFolder folder;
  at::Tensor saved = at::zeros({3, 2});
  Checkpoint({{"weight", saved}}).save(folder.prefix());
  try {
    run_ranks(2, [&](dist::Communicator& ranks) {
      at::Tensor weight = at::zeros({3, 2 + ranks.rank()});  // as shaped by its first input
      Checkpoint checkpoint({{"weight", weight}}, {.ranks = &ranks});
      checkpoint.restore(folder.prefix() + "-1");
    });
    FAIL() << "must throw";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kDisagree);
    EXPECT_THAT(fault.what(), HasSubstr("weight float32 [3, 2]"));
    EXPECT_THAT(fault.what(), HasSubstr("weight float32 [3, 3]"));
  }
}

TEST(CheckpointRanks, ASaveOnSomeRanksAndNoneOnOthersIsRefused) {
  const TemporaryFolder folder;
  at::Tensor saved = at::zeros({3});
  Checkpoint({{"weight", saved}}).save(folder.prefix());
  try {
    run_ranks(2, [&](dist::Communicator& ranks) {
      at::Tensor weight = at::zeros({3});
      Checkpoint checkpoint({{"weight", weight}}, {.ranks = &ranks});
      checkpoint.restore(ranks.rank() == 0 ? std::optional(folder.prefix() + "-1") : std::nullopt);
    });
    FAIL() << "must throw";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kDisagree);
  }
}

}  // namespace checkpoint_ranks_test
}  // namespace lockstep::checkpoint
