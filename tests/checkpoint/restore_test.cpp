#include "checkpoint/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/checkpoint_files.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace restore_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::SmallState;
using tests::TemporaryFolder;

Error fault_of_restore(const std::string& prefix, const StateList& state) {
  try {
    restore(prefix, state);
  } catch (const Error& fault) {
    return fault;
  }
  return Error(ExitCode::kDone, "", "no fault");
}

void flip(const std::string& path, size_t place) {
  std::string bytes = tests::bytes_of(path);
  bytes.at(place) = static_cast<char>(bytes[place] ^ 4);
  tests::put_bytes(path, bytes);
}

/// Number that restore_latest finds on `world_size` ranks, -1 for none. Checks that the state is
/// that of the number.
int64_t restored_number(const TemporaryFolder& folder, int world_size) {
  std::vector<int64_t> numbers(static_cast<size_t>(world_size));
  lockstep::tests::run_ranks(world_size, [&](dist::Communicator& control) {
    SmallState state(99);
    const auto report = restore_latest(folder.path(), "model.ckpt", state.list(), control);
    numbers[static_cast<size_t>(control.rank())] = report ? report->number : -1;
    if (report) {
      EXPECT_TRUE(state == SmallState(report->number)) << "rank " << control.rank();
    }
  });
  for (const int64_t number : numbers) EXPECT_EQ(number, numbers[0]);
  return numbers[0];
}

TEST(Restore, AnyWorldSizeReadsWhatAnyOtherWrote) {
  for (const int saved_by : {1, 2, 3}) {
    TemporaryFolder folder;
    tests::save_small({.prefix = folder.prefix()}, 3, saved_by);
    for (const int read_by : {1, 2, 3})
      EXPECT_EQ(restored_number(folder, read_by), 3) << saved_by << " -> " << read_by;
  }
}

TEST(Restore, WritesIntoTheLiveMemoryWhateverItsStrides) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 3);
  SmallState state;
  state.weight = at::zeros({50, 30}).t();
  state.moment.requires_grad_(true);
  const void* weight = state.weight.data_ptr();
  const void* moment = state.moment.data_ptr();
  const RestoreReport report = restore(folder.prefix() + "-3", state.list());
  EXPECT_EQ(report.number, 3);
  EXPECT_TRUE(report.unused.empty());
  EXPECT_TRUE(state == SmallState(3));
  EXPECT_EQ(state.weight.data_ptr(), weight);
  EXPECT_EQ(state.moment.data_ptr(), moment);
}

TEST(Restore, NamesThatDoNotMatchAreReported) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 3);
  SmallState state;
  EXPECT_THAT(
      restore(folder.prefix() + "-3", {{"model/weight", state.weight}}).unused,
      ElementsAre("_lockstep/note", "_lockstep/step", "model/bias", "optimizer/momentum/weight"));
  const Error missing = fault_of_restore(
      folder.prefix() + "-3", {{"model/weight", state.weight}, {"model/new", state.bias}});
  EXPECT_EQ(missing.code(), ExitCode::kConfig);
  EXPECT_THAT(missing.what(), HasSubstr("contains no 'model/new'"));
}

TEST(Restore, WhatMayBeMissingGetsItsValue) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 3);
  const at::Tensor added = at::ones({3});
  std::string note = "of another run";
  (void)restore(folder.prefix() + "-3",
                {{"model/added", added, nullptr, 7.0}, {"_lockstep/added", {}, &note, 0.0}});
  EXPECT_TRUE(added.equal(at::full({3}, 7.0)));
  EXPECT_EQ(note, "");
}

TEST(Restore, WrongFormIsRefusedBeforeAnythingIsWritten) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 3);
  for (const at::Tensor& wrong :
       {at::zeros({7}, at::kFloat), at::zeros({8}, at::kDouble), at::zeros({7, 1}, at::kDouble)}) {
    SmallState state;
    StateList list = state.list();
    list[2].tensor = wrong;
    const Error fault = fault_of_restore(folder.prefix() + "-3", list);
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_THAT(fault.what(), HasSubstr("model/bias"));
    EXPECT_TRUE(at::equal(state.weight, SmallState().weight));
  }
  std::string text;
  EXPECT_THAT(fault_of_restore(folder.prefix() + "-3", {{"model/bias", {}, &text}}).what(),
              HasSubstr("needs string"));
  at::Tensor number = at::zeros({});
  EXPECT_THAT(fault_of_restore(folder.prefix() + "-3", {{"_lockstep/note", number}}).what(),
              HasSubstr("is string []"));
}

TEST(Restore, BadPrefixesGetAHint) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 3);
  EXPECT_EQ(fault_of_restore(folder.prefix() + "-3.index", {}).code(), ExitCode::kUsage);
  EXPECT_EQ(fault_of_restore(folder.prefix() + "-4", {}).code(), ExitCode::kInputMissing);
  EXPECT_EQ(fault_of_restore(folder.prefix(), {}).code(), ExitCode::kInputMissing);
}

TEST(RestoreLatest, NothingThereIsNoError) {
  TemporaryFolder folder;
  EXPECT_EQ(restored_number(folder, 2), -1);
  std::filesystem::remove(folder.path());
  EXPECT_EQ(restored_number(folder, 1), -1);
}

TEST(RestoreLatest, TenIsNewerThanNine) {
  TemporaryFolder folder;
  for (int64_t step : {9, 10, 2}) tests::save_small({.prefix = folder.prefix()}, step);
  EXPECT_EQ(restored_number(folder, 2), 10);
}

TEST(RestoreLatest, FallsBackOneByOneAndThenRefusesToStartOver) {
  TemporaryFolder folder;
  for (int64_t step : {1, 2, 3, 4}) tests::save_small({.prefix = folder.prefix()}, step, 2);
  flip(folder / "model.ckpt-4.data-00001-of-00002", 100);  // sizes are right, a crc is not
  EXPECT_EQ(restored_number(folder, 2), 3);
  std::filesystem::resize_file(folder / "model.ckpt-3.data-00000-of-00002", 5000);
  EXPECT_EQ(restored_number(folder, 3), 2);
  flip(folder / "model.ckpt-2.index", 30);
  EXPECT_EQ(restored_number(folder, 1), 1);
  std::filesystem::remove(folder / "model.ckpt-1.data-00000-of-00002");
  try {
    restored_number(folder, 2);
    FAIL() << "must throw";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    for (const char* expected : {"4 checkpoints and none", "wrong crc32c", "truncated",
                                 "model.ckpt-2.index", "-1.data-00000-of-00002"})
      EXPECT_THAT(fault.what(), HasSubstr(expected));
  }
}

TEST(RestoreLatest, ASaveWhoseIndexIsGoneStillCountsAsASave) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 1);
  std::filesystem::remove(folder / "model.ckpt-1.index");
  EXPECT_THROW(restored_number(folder, 1), Error);
}

TEST(RestoreLatest, AMissingOrDamagedStateFileDoesNotMatter) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 1);
  tests::put_bytes(folder / "checkpoint", "model_checkpoint_path");
  EXPECT_EQ(restored_number(folder, 2), 1);
  std::filesystem::remove(folder / "checkpoint");
  EXPECT_EQ(restored_number(folder, 2), 1);
}

TEST(RestoreOnAll, OneRanksFaultIsEveryRanks) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 1);
  lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
    SmallState state;
    StateList list = state.list();
    if (control.rank() == 1) list.push_back({"model/only_here", at::zeros({1})});
    try {
      restore_on_all(folder.prefix() + "-1", list, control);
      ADD_FAILURE() << "must throw";
    } catch (const Error& fault) {
      EXPECT_TRUE(fault.on_every_rank());
      EXPECT_THAT(fault.what(), HasSubstr("rank 1"));
    }
  });
}

}  // namespace restore_test
}  // namespace lockstep::checkpoint
