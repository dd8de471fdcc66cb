#include "checkpoint/save/saver.h"

#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "dist/communicator.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace saver_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::SmallState;
using tests::TemporaryFolder;

std::vector<int64_t> numbers_in(const TemporaryFolder& folder) {
  std::vector<int64_t> numbers;
  for (const SaveName& save : find_saves(folder.path())) numbers.push_back(save.number);
  return numbers;
}

/// Fails on one rank at one phase, as a full disk would.
std::function<void(SavePhase)> no_space_at(SavePhase phase, dist::Communicator& control, int rank) {
  return [=, &control](SavePhase reached) {
    if (reached == phase && control.rank() == rank)
      throw Error(ExitCode::kIo, "files", "no space left");
  };
}

class SaverOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(SaverOnRanks, EachRankWritesItsShardAndAllMakeOneSave) {
  TemporaryFolder folder;
  const SaveResult result = tests::save_small({.prefix = folder.prefix()}, 12, GetParam());
  EXPECT_TRUE(result.ok) << result.error;
  EXPECT_EQ(result.prefix, folder.prefix() + "-12");
  std::vector<std::string> expected = {"checkpoint"};
  int64_t num_bytes = 0;
  for (int rank = 0; rank < GetParam(); ++rank) {
    expected.push_back(fmt::format("model.ckpt-12.data-{:05}-of-{:05}", rank, GetParam()));
    num_bytes += static_cast<int64_t>(tests::bytes_of(folder / expected.back()).size());
  }
  expected.push_back("model.ckpt-12.index");
  EXPECT_EQ(files::list(folder.path()), expected);
  EXPECT_EQ(
      result.bytes_written,
      num_bytes + static_cast<int64_t>(tests::bytes_of(folder / "model.ckpt-12.index").size()));
  EXPECT_THAT(verify(result.prefix), ElementsAre());
  EXPECT_EQ(
      tests::bytes_of(folder / "checkpoint"),
      "model_checkpoint_path: \"model.ckpt-12\"\nall_model_checkpoint_paths: \"model.ckpt-12\"\n");
}

TEST_P(SaverOnRanks, TensorsStartAtAlignedPlacesAndAreSpreadByBytes) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 1, GetParam());
  BundleReader reader(folder.prefix() + "-1");
  for (const auto& [name, entry] : reader.index().entries)
    EXPECT_EQ(entry.offset % 4096, 0) << name;
  const int largest = reader.find("model/weight/.ATTRIBUTES/VARIABLE_VALUE")->shard;
  const int as_large = reader.find("optimizer/momentum/weight/.ATTRIBUTES/VARIABLE_VALUE")->shard;
  EXPECT_EQ(largest != as_large, GetParam() > 1);
}

/// Phases that rank 0 alone reaches.
bool is_of_rank_0(SavePhase phase) {
  return phase == SavePhase::kIndexWritten || phase == SavePhase::kOldRemoved ||
         phase == SavePhase::kCommitted || phase == SavePhase::kStateWritten ||
         phase == SavePhase::kDone;
}

TEST_P(SaverOnRanks, AFaultOnAnyRankInAnyPhaseUpToTheCommitLeavesNoTraceAndTheRunGoesOn) {
  for (const SavePhase phase :
       {SavePhase::kStaged, SavePhase::kShardWritten, SavePhase::kEntriesAgreed,
        SavePhase::kIndexWritten, SavePhase::kOldRemoved, SavePhase::kShardRenamed,
        SavePhase::kCommitted}) {
    for (int bad_rank = 0; bad_rank < GetParam(); ++bad_rank) {
      if (is_of_rank_0(phase) && bad_rank > 0) continue;
      TemporaryFolder folder;
      tests::save_small({.prefix = folder.prefix()}, 5, GetParam());
      const std::vector<std::string> before = files::list(folder.path());
      lockstep::tests::run_ranks(GetParam(), [&](dist::Communicator& control) {
        SmallState state(6);
        Saver faulty({.prefix = folder.prefix(), .at_phase = no_space_at(phase, control, bad_rank)},
                     control);
        const SaveResult result = faulty.save(state.list(), 6);
        EXPECT_FALSE(result.ok);
        EXPECT_THAT(result.error, HasSubstr("no space left"));
        EXPECT_EQ(result.error.find(fmt::format("rank {}", bad_rank)) != std::string::npos,
                  GetParam() > 1);
        control.barrier();
        EXPECT_EQ(files::list(folder.path()), before) << "phase " << static_cast<int>(phase);
        control.barrier();
        EXPECT_TRUE(Saver({.prefix = folder.prefix()}, control).save(state.list(), 6).ok);
      });
      EXPECT_THAT(verify(folder.prefix() + "-5"), ElementsAre());
      EXPECT_THAT(verify(folder.prefix() + "-6"), ElementsAre());
    }
  }
}

TEST_P(SaverOnRanks, AFaultOnAnyRankInAnyPhaseAfterTheCommitCostsNoSaveAndTheNextTidiesUp) {
  for (const SavePhase phase : {SavePhase::kReadBack, SavePhase::kStateWritten, SavePhase::kDone})
    for (int bad_rank = 0; bad_rank < (is_of_rank_0(phase) ? 1 : GetParam()); ++bad_rank) {
      TemporaryFolder folder;
      tests::save_small({.prefix = folder.prefix()}, 5, GetParam());
      lockstep::tests::run_ranks(GetParam(), [&](dist::Communicator& control) {
        SmallState state(6);
        const SaverOptions options{.prefix = folder.prefix(),
                                   .keep_checkpoint_max = 1,
                                   .at_phase = no_space_at(phase, control, bad_rank)};
        EXPECT_TRUE(Saver(options, control).save(state.list(), 6).ok);
        control.barrier();
        EXPECT_TRUE(verify(folder.prefix() + "-6").empty()) << static_cast<int>(phase);
      });
      EXPECT_EQ(numbers_in(folder).front(), phase == SavePhase::kDone ? 6 : 5);
      EXPECT_EQ(read_state_file(folder.path())->newest, "model.ckpt-6");
      tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 1}, 7, GetParam());
      EXPECT_THAT(numbers_in(folder), ElementsAre(7)) << static_cast<int>(phase);
      EXPECT_EQ(files::list(folder.path()).size(), static_cast<size_t>(GetParam()) + 2);
    }
}

/// A disk that gives back other bytes than were written.
TEST_P(SaverOnRanks, ASaveThatDoesNotReadBackIsTakenBackAndNothingNamesIt) {
  for (int bad_rank = 0; bad_rank < GetParam(); ++bad_rank) {
    TemporaryFolder folder;
    for (const int64_t number : {4, 5})
      tests::save_small({.prefix = folder.prefix()}, number, GetParam());
    if (tests::bytes_of(shard_path(folder.prefix() + "-5", bad_rank, GetParam())).empty()) continue;
    const std::vector<std::string> before = files::list(folder.path());
    const std::string state_file = tests::bytes_of(folder / "checkpoint");
    lockstep::tests::run_ranks(GetParam(), [&](dist::Communicator& control) {
      const auto spoil = [&](SavePhase phase) {
        if (phase != SavePhase::kShardRenamed || control.rank() != bad_rank) return;
        const std::string path = shard_path(folder.prefix() + "-6", bad_rank, GetParam());
        std::string bytes = tests::bytes_of(path);
        bytes.front() = static_cast<char>(bytes.front() ^ 1);
        tests::put_bytes(path, bytes);
      };
      SmallState state(6);
      const SaveResult result =
          Saver({.prefix = folder.prefix(), .keep_checkpoint_max = 2, .at_phase = spoil}, control)
              .save(state.list(), 6);
      EXPECT_FALSE(result.ok);
      EXPECT_EQ(result.code, ExitCode::kBadData);
      EXPECT_THAT(result.error, HasSubstr("reads back other bytes than were written"));
    });
    EXPECT_EQ(files::list(folder.path()), before);
    EXPECT_EQ(tests::bytes_of(folder / "checkpoint"), state_file);
  }
}

TEST_P(SaverOnRanks, AFullDiskDoesNotCostAnOlderSaveOfTheSameNumber) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 5, GetParam());
  for (const SavePhase phase : {SavePhase::kShardWritten, SavePhase::kIndexWritten}) {
    lockstep::tests::run_ranks(GetParam(), [&](dist::Communicator& control) {
      SmallState other(7);
      EXPECT_FALSE(
          Saver({.prefix = folder.prefix(), .at_phase = no_space_at(phase, control, 0)}, control)
              .save(other.list(), 5)
              .ok);
    });
    SmallState restored(0);
    restore(folder.prefix() + "-5", restored.list());
    EXPECT_TRUE(restored == SmallState(5));
    EXPECT_THAT(verify(folder.prefix() + "-5"), ElementsAre());
  }
}

TEST_P(SaverOnRanks, AnotherWorldSizeMayRewriteANumber) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 5, GetParam() + 1);
  lockstep::tests::run_ranks(GetParam(), [&](dist::Communicator& control) {
    SmallState state(8);
    EXPECT_TRUE(Saver({.prefix = folder.prefix()}, control).save(state.list(), 5).ok);
  });
  EXPECT_THAT(verify(folder.prefix() + "-5"), ElementsAre());
  EXPECT_EQ(files::list(folder.path()).size(), static_cast<size_t>(GetParam()) + 2);
}

/// While it lives, the kernel refuses writes beyond this many bytes of a file, in the middle of a
/// write if need be.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{num_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_P(SaverOnRanks, AWriteThatTheKernelRefusesFailsCleanly) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 5, GetParam());
  const std::vector<std::string> before = files::list(folder.path());
  for (const rlim_t limit : {0, 100, 4096, 6001}) {
    SaveResult result;
    {
      const FileSizeLimit refuse(limit);
      result = tests::save_small({.prefix = folder.prefix()}, 6, GetParam());
    }
    EXPECT_FALSE(result.ok) << limit;
    EXPECT_THAT(result.error, HasSubstr("File too large")) << limit;
    EXPECT_EQ(files::list(folder.path()), before) << limit;
  }
  EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 6, GetParam()).ok);
  EXPECT_THAT(verify(folder.prefix() + "-6"), ElementsAre());
}

INSTANTIATE_TEST_SUITE_P(Worlds, SaverOnRanks, ::testing::Values(1, 2, 3));

TEST(Saver, KeepsTheNewest) {
  TemporaryFolder folder;
  for (int64_t step : {8, 9, 10, 11})
    tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 2}, step, 2);
  EXPECT_THAT(numbers_in(folder), ElementsAre(10, 11));
  EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre("model.ckpt-10", "model.ckpt-11"));
  tests::put_bytes(folder / "notes.txt", "not ours");
  tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = -1}, 13, 1);
  EXPECT_THAT(numbers_in(folder), ElementsAre(10, 11, 13));
  EXPECT_THAT(files::list(folder.path()),
              ElementsAre("checkpoint", "model.ckpt-10.data-00000-of-00002",
                          "model.ckpt-10.data-00001-of-00002", "model.ckpt-10.index",
                          "model.ckpt-11.data-00000-of-00002", "model.ckpt-11.data-00001-of-00002",
                          "model.ckpt-11.index", "model.ckpt-13.data-00000-of-00001",
                          "model.ckpt-13.index", "notes.txt"));
}

TEST(Saver, NeverRemovesTheSaveJustWrittenNorAHigherNumber) {
  TemporaryFolder folder;
  for (int64_t step : {100, 200})
    tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 2}, step);
  tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 2}, 50);
  EXPECT_THAT(numbers_in(folder), ElementsAre(50, 100, 200));
}

TEST(Saver, StatesOfDifferentFormStopEveryRank) {
  TemporaryFolder folder;
  try {
    lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
      const at::Tensor odd = at::zeros({3 + control.rank()});
      Saver({.prefix = folder.prefix()}, control).save({{"model/w", odd}}, 1);
    });
    FAIL() << "must throw";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kDisagree);
  }
  EXPECT_TRUE(files::list(folder.path()).empty());
}

TEST(Saver, ATensorWithoutAFormInAFileIsRefused) {
  TemporaryFolder folder;
  const at::Tensor sparse = at::eye(3).to_sparse();
  lockstep::tests::run_ranks(1, [&](dist::Communicator& control) {
    EXPECT_THROW(Saver({.prefix = folder.prefix()}, control).save({{"model/w", sparse}}, 1), Error);
  });
}

TEST(Saver, MemoryThatWasPreparedForAnotherFormIsNoHarm) {
  TemporaryFolder folder;
  dist::SelfCommunicator alone;
  SmallState small(3);
  StateList large = small.list();
  large.push_back({"model/large", at::zeros({1 << 20})});
  for (const StateList& prepared : {small.list(), large}) {
    Saver saver({.prefix = folder.prefix()}, alone);
    saver.prepare(prepared);
    ASSERT_TRUE(saver.save(small.list(), 3).ok);
    SmallState found(0);
    restore(numbered(folder.prefix(), 3), found.list());
    EXPECT_TRUE(found == small);
  }
}

}  // namespace saver_test
}  // namespace lockstep::checkpoint
