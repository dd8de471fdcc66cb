#include "dist/communicator.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace agree_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

/// The error that run_ranks reports for this body.
Error error_of(int world_size, const std::function<void(Communicator&)>& body) {
  try {
    tests::run_ranks(world_size, body);
  } catch (const Error& error) {
    return error;
  }
  return {ExitCode::kDone, "test", "nothing was thrown"};
}

class Agree : public ::testing::TestWithParam<int> {};

TEST_P(Agree, AllEqualOnlyWhenEveryRankHasTheValue) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    const bool alone = comm.world_size() == 1;
    for (const int64_t value : {int64_t{0}, int64_t{-1}, kLowest, kHighest})
      EXPECT_TRUE(all_equal(comm, value));
    EXPECT_EQ(all_equal(comm, comm.rank() == 0 ? kLowest : kHighest), alone);
    EXPECT_EQ(all_equal(comm, comm.rank() + 1 == comm.world_size() ? 5 : 6), alone);
  });
}

TEST_P(Agree, MinMaxSumAnyOverAllRanks) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    const int64_t num_ranks = comm.world_size();
    EXPECT_EQ(min_of(comm, 10 - comm.rank()), 11 - num_ranks);
    EXPECT_EQ(max_of(comm, 10 - comm.rank()), 10);
    EXPECT_EQ(sum_of(comm, comm.rank()), num_ranks * (num_ranks - 1) / 2);
    EXPECT_TRUE(any_of(comm, comm.rank() + 1 == num_ranks));
    EXPECT_FALSE(any_of(comm, false));
  });
}

TEST_P(Agree, TextsOfAnyLengthAreGatheredByRank) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    const auto texts =
        gather_texts(comm, std::string(comm.rank(), static_cast<char>('a' + comm.rank())));
    ASSERT_EQ(texts.size(), static_cast<size_t>(comm.world_size()));
    for (int r = 0; r < comm.world_size(); ++r)
      EXPECT_EQ(texts[r], std::string(r, static_cast<char>('a' + r)));
    EXPECT_THAT(gather_texts(comm, ""), ::testing::Each(""));
  });
}

TEST_P(Agree, RankZerosTextReachesEveryRank) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    const std::string text("one\0two", 7);
    EXPECT_EQ(broadcast_text(comm, comm.rank() == 0 ? text : "something longer than that"), text);
    EXPECT_EQ(broadcast_text(comm, comm.rank() == 0 ? "" : "x"), "");
  });
}

TEST_P(Agree, EqualTextsPassAndNoFaultPasses) {
  tests::run_ranks(GetParam(), [](Communicator& comm) {
    EXPECT_NO_THROW(require_equal(comm, "config", "the same"));
    EXPECT_NO_THROW(throw_if_any(comm, std::nullopt));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Agree, ::testing::Values(1, 2, 3, 4));

TEST(RequireEqual, NamesEachGroupOfRanksWithItsText) {
  const Error error = error_of(4, [](Communicator& comm) {
    require_equal(comm, "binary", comm.rank() == 1 ? "0.2.0" : "0.1.0");
  });
  EXPECT_EQ(error.code(), ExitCode::kDisagree);
  EXPECT_TRUE(error.on_every_rank());
  EXPECT_STREQ(error.what(), "[dist] binary differs: ranks 0, 2, 3: 0.1.0; rank 1: 0.2.0");
}

TEST(RequireEqual, ThrowsOnEveryRank) {
  tests::run_ranks(3, [](Communicator& comm) {
    EXPECT_THROW(require_equal(comm, "config", std::to_string(comm.rank())), Error);
  });
}

TEST(RequireEqual, ShowsLongTextsAroundTheFirstDifference) {
  const Error error = error_of(2, [](Communicator& comm) {
    require_equal(comm, "parameters",
                  std::string(5000, 'x') + "\nw" + std::to_string(comm.rank()) + " [3]" +
                      std::string(5000, 'y'));
  });
  EXPECT_THAT(error.what(), HasSubstr("x\\nw0 [3]y"));
  EXPECT_THAT(error.what(), HasSubstr("x\\nw1 [3]y"));
  EXPECT_LT(std::string(error.what()).size(), 400U);
}

TEST(RequireEqual, ATextThatIsAPrefixDiffers) {
  const Error error = error_of(2, [](Communicator& comm) {
    require_equal(comm, "config", comm.rank() == 0 ? "ab" : "abc");
  });
  EXPECT_STREQ(error.what(), "[dist] config differs: rank 0: ab; rank 1: abc");
}

TEST(ThrowIfAny, TheLowestFaultyRanksErrorReachesEveryRank) {
  tests::run_ranks(4, [](Communicator& comm) {
    std::optional<Error> fault;
    if (comm.rank() >= 2)
      fault = Error(ExitCode::kBadData, "data",
                    "file of rank " + std::to_string(comm.rank()) + " is cut short");
    try {
      throw_if_any(comm, fault);
      ADD_FAILURE() << "rank " << comm.rank() << " went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_TRUE(error.on_every_rank());
      EXPECT_STREQ(error.what(), "[data] rank 2: file of rank 2 is cut short");
    }
  });
}

TEST(ThrowIfAny, ALoneRankIsNotNamed) {
  const Error error = error_of(1, [](Communicator& comm) {
    throw_if_any(comm, Error(ExitCode::kIo, "checkpoint", "disk full"));
  });
  EXPECT_STREQ(error.what(), "[checkpoint] disk full");
}

TEST(RanksText, JoinsRunsOfThreeAndMore) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text({0, 2, 3, 4, 7}), "ranks 0, 2-4, 7");
}

TEST(ThreadWorld, AFailingRanksErrorIsReportedHoweverItsPeersWait) {
  for (int round = 0; round < 200; ++round) {
    const Error error = error_of(4, [](Communicator& comm) {
      if (comm.rank() == 2) throw Error(ExitCode::kBadData, "test", "rank 2 failed");
      comm.split(comm.rank() % 2, 0)->barrier();
    });
    ASSERT_STREQ(error.what(), "[test] rank 2 failed");
  }
}

TEST(ThreadWorld, ARankInASplitWorldLearnsOfItsPeersEnd) {
  const Error error = error_of(4, [](Communicator& comm) {
    const auto half = comm.split(comm.rank() / 2, 0);
    if (comm.rank() == 3) throw Error(ExitCode::kBadData, "test", "rank 3 failed");
    half->barrier();
  });
  EXPECT_STREQ(error.what(), "[test] rank 3 failed");
}

TEST(ThreadWorld, ARankThatReturnsTooEarlyIsNoticed) {
  const Error error = error_of(2, [](Communicator& comm) {
    if (comm.rank() == 0) comm.barrier();
  });
  EXPECT_EQ(error.code(), ExitCode::kUnavailable);
}

TEST(ThreadWorld, DifferentCallsAreNamed) {
  const Error error = error_of(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.barrier();
    } else {
      all_equal(comm, 0);
    }
  });
  EXPECT_EQ(error.code(), ExitCode::kBug);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 all_reduce"));
}

}  // namespace agree_test
}  // namespace lockstep::dist
