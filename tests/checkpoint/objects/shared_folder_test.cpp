#include "checkpoint/save/checkpoint_folder.h"

#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace shared_folder_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::TemporaryFolder;

std::string host_of(const dist::Communicator& ranks) {
  return "node" + std::to_string(ranks.rank());
}

TEST(SharedFolder, OneFolderForAllLeavesNoTrace) {
  const TemporaryFolder folder;
  lockstep::tests::run_ranks(
      3, [&](dist::Communicator& ranks) { require_shared(folder.path(), host_of(ranks), ranks); });
  EXPECT_THAT(files::list(folder.path()), IsEmpty());
}

TEST(SharedFolder, RanksThatSeeAnotherAreNamedOnAllRanks) {
  const TemporaryFolder folder, other;
  lockstep::tests::run_ranks(4, [&](dist::Communicator& ranks) {
    const bool is_blind = ranks.rank() % 2 == 1;
    try {
      require_shared(is_blind ? other.path() / "absent" : folder.path(), host_of(ranks), ranks,
                     0.05);
      ADD_FAILURE() << "nothing was thrown on rank " << ranks.rank();
    } catch (const Error& error) {
      EXPECT_TRUE(error.on_every_rank());
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 on node0 writes"),
                                      HasSubstr("rank 1 on node1, rank 3 on node3"),
                                      Not(HasSubstr("node2")), HasSubstr("run.project_dir")));
    }
  });
  EXPECT_THAT(files::list(folder.path()), IsEmpty());
}

TEST(SharedFolder, AFileThatIsShownLateIsWaitedFor) {
  const TemporaryFolder folder, other;
  std::filesystem::create_directory_symlink(folder.path() / "absent", other.path() / "late");
  std::thread mount([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::filesystem::remove(other.path() / "late");
    std::filesystem::create_directory_symlink(folder.path(), other.path() / "late");
  });
  lockstep::tests::run_ranks(2, [&](dist::Communicator& ranks) {
    require_shared(ranks.rank() == 0 ? folder.path() : other.path() / "late", host_of(ranks),
                   ranks);
  });
  mount.join();
}

TEST(SharedFolder, WhatRank0CannotWriteIsItsFault) {
  const TemporaryFolder folder;
  lockstep::tests::run_ranks(2, [&](dist::Communicator& ranks) {
    EXPECT_THROW(require_shared(folder.path() / "absent", host_of(ranks), ranks, 0.05), Error);
  });
}

}  // namespace shared_folder_test
}  // namespace lockstep::checkpoint
