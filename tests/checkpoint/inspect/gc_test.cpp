#include "checkpoint/tools/gc.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/folder_lock.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace gc_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using tests::TemporaryFolder;

/// name (reason)
std::vector<std::string> found(const TemporaryFolder& folder, std::optional<int64_t> keep = {}) {
  std::vector<std::string> all;
  for (const Garbage& one : find_garbage(folder.path(), keep))
    all.push_back(fmt::format("{} ({})", one.name, one.reason));
  return all;
}

void save_numbers(const TemporaryFolder& folder, const std::vector<int64_t>& numbers) {
  for (const int64_t number : numbers)
    tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = -1}, number);
}

std::vector<int64_t> numbers_in(const TemporaryFolder& folder) {
  std::vector<int64_t> numbers;
  for (const SaveName& save : find_saves(folder.path())) numbers.push_back(save.number);
  return numbers;
}

void cut(const TemporaryFolder& folder, int64_t number) {
  std::filesystem::resize_file(folder / fmt::format("model.ckpt-{}.data-00000-of-00001", number),
                               1);
}

TEST(Garbage, IsWhatInterruptedSavesLeave) {
  TemporaryFolder folder;
  save_numbers(folder, {2, 10});
  for (const char* name : {"model.ckpt-2.index.tmp", "model.ckpt-11.data-00000-of-00002.tmp",
                           "checkpoint.tmp", "model.ckpt-3.data-00000-of-00001",
                           "other-4.data-00001-of-00002", "model.ckpt-2.data-00001-of-00002"})
    tests::put_bytes(folder / name, "left");
  for (const char* name : {"notes.txt", "notes.tmp", "notes-3.data-2024.csv", "notes-3.index",
                           "model.ckpt-3.data-00000-of-1", "notes-4.data-00000.tmp"})
    tests::put_bytes(folder / name, "somebody's");
  EXPECT_THAT(found(folder), UnorderedElementsAre(
                                 "checkpoint.tmp (temporary)", "model.ckpt-2.index.tmp (temporary)",
                                 "model.ckpt-11.data-00000-of-00002.tmp (temporary)",
                                 "model.ckpt-3.data-00000-of-00001 (no_index)",
                                 "other-4.data-00001-of-00002 (no_index)",
                                 "model.ckpt-2.data-00001-of-00002 (other_shards)"));
  EXPECT_EQ(found(folder, 5), found(folder)) << "there are only two saves";
}

TEST(Garbage, IsNotASaveOfWhichTheIndexCannotBeRead) {
  TemporaryFolder folder;
  save_numbers(folder, {2});
  std::filesystem::resize_file(folder / "model.ckpt-2.index", 5);
  EXPECT_THAT(found(folder), IsEmpty());
  EXPECT_THAT(found(folder, 1), IsEmpty()) << "no save is complete";
}

TEST(Garbage, KeepCountsCompleteSavesFromTheNewest) {
  TemporaryFolder folder;
  save_numbers(folder, {2, 9, 10, 11});
  cut(folder, 10);
  const std::string save_2 = "model.ckpt-2.index (old)";
  EXPECT_THAT(found(folder, 3), IsEmpty());
  EXPECT_THAT(found(folder, 2), ElementsAre(save_2, "model.ckpt-2.data-00000-of-00001 (old)"));
  EXPECT_EQ(found(folder, 1).size(), 6U) << "2, 9 and the damaged 10";
  cut(folder, 11);
  EXPECT_EQ(found(folder, 1).size(), 2U) << "9 is the newest complete one, 10 and 11 are newer";
}

TEST(Garbage, TheBestSaveIsNeverOld) {
  TemporaryFolder folder;
  save_numbers(folder, {1, 2, 3});
  write_best(folder.prefix(), {.number = 1, .metric = "eval.accuracy", .value = 0.5});
  EXPECT_THAT(found(folder, 1),
              ElementsAre("model.ckpt-2.index (old)", "model.ckpt-2.data-00000-of-00001 (old)"));
}

TEST(Garbage, EachPrefixKeepsItsOwn) {
  TemporaryFolder folder;
  save_numbers(folder, {1, 2});
  tests::save_small({.prefix = folder / "other"}, 1);
  EXPECT_THAT(found(folder, 1),
              ElementsAre("model.ckpt-1.index (old)", "model.ckpt-1.data-00000-of-00001 (old)"));
}

TEST(Collect, RemovesAndTells) {
  TemporaryFolder folder;
  save_numbers(folder, {1, 2, 3});
  tests::put_bytes(folder / "model.ckpt-4.index.tmp", "left");
  const auto size = [&](const char* name) { return std::filesystem::file_size(folder / name); };
  const size_t num_bytes =
      4 + size("model.ckpt-1.index") + size("model.ckpt-1.data-00000-of-00001");
  const GcOptions options{.keep = 2, .json = true};
  GcOptions dry = options;
  dry.dry_run = true;
  auto would = nlohmann::json::parse(collect_garbage(folder.path(), dry).text);
  EXPECT_THAT(numbers_in(folder), ElementsAre(1, 2, 3));
  EXPECT_TRUE(std::filesystem::exists(folder / "model.ckpt-4.index.tmp"));
  const auto done = nlohmann::json::parse(collect_garbage(folder.path(), options).text);
  EXPECT_EQ(would["dry_run"], true);
  would["dry_run"] = false;
  EXPECT_EQ(done, would);
  EXPECT_EQ(done["bytes_freed"], num_bytes);
  EXPECT_EQ(done["removed"].size(), 3U);
  EXPECT_EQ(done["removed"][0]["file"], "model.ckpt-4.index.tmp");
  EXPECT_EQ(done["saves"], nlohmann::json::array({folder.prefix() + "-2", folder.prefix() + "-3"}));
  EXPECT_THAT(numbers_in(folder), ElementsAre(2, 3));
  EXPECT_THAT(
      files::list(folder.path()),
      UnorderedElementsAre("checkpoint", "model.ckpt-2.data-00000-of-00001", "model.ckpt-2.index",
                           "model.ckpt-3.data-00000-of-00001", "model.ckpt-3.index"));
  EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre("model.ckpt-2", "model.ckpt-3"));
  EXPECT_EQ(read_state_file(folder.path())->newest, "model.ckpt-3");
  EXPECT_THAT(collect_garbage(folder.path(), {}).text,
              HasSubstr("removed 0 files, 0 bytes; 2 checkpoints"));
}

TEST(Collect, TheSaveThatTheStateFileWasSetBackToStaysAndIsNamed) {
  TemporaryFolder folder;
  save_numbers(folder, {1, 2, 3});
  write_state_file(folder.path(), {"model.ckpt-1", {"model.ckpt-1", "model.ckpt-2"}});
  collect_garbage(folder.path(), {.keep = 1});
  EXPECT_THAT(numbers_in(folder), ElementsAre(1, 3));
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-1");
  EXPECT_EQ(read_state_file(folder.path())->newest, "model.ckpt-1");
  EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre("model.ckpt-1"));
}

TEST(Collect, APrefixMayHoldWhatFilesOfSavesEndIn) {
  for (const std::string name : {"mnist.data-aug", "a.index-b", "m.data-00000-of-00001-x"}) {
    TemporaryFolder folder;
    for (const int64_t number : {1, 2, 3})
      EXPECT_TRUE(
          tests::save_small({.prefix = folder / name, .keep_checkpoint_max = 2}, number).ok);
    EXPECT_EQ(latest_checkpoint(folder.path()), folder / (name + "-3"));
    EXPECT_THAT(numbers_in(folder), ElementsAre(2, 3)) << name << ": keep_checkpoint_max is 2";
    EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre(name + "-2", name + "-3"));
    EXPECT_THAT(collect_garbage(folder.path(), {}).text, HasSubstr("removed 0 files"));
  }
}

/// Simulates a kill between the commit of `number` and the write of its state file.
void forget_in_state_file(const TemporaryFolder& folder, int64_t number, const StateFile& before) {
  write_state_file(folder.path(), before);
  const auto index = folder / fmt::format("model.ckpt-{}.index", number);
  std::filesystem::last_write_time(
      folder / "checkpoint", std::filesystem::last_write_time(index) - std::chrono::seconds(1));
}

TEST(Collect, ASaveThatWasCommittedAndNotNamedYetStaysTheNewest) {
  for (const std::optional<int64_t> keep :
       {std::optional<int64_t>(2), std::optional<int64_t>(1), std::optional<int64_t>()}) {
    TemporaryFolder folder;
    save_numbers(folder, {3, 5});
    const StateFile before = *read_state_file(folder.path());
    save_numbers(folder, {10});
    forget_in_state_file(folder, 10, before);
    ASSERT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-10");
    collect_garbage(folder.path(), {.keep = keep});
    EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-10");
    const StateFile after = *read_state_file(folder.path());
    EXPECT_EQ(after.newest, "model.ckpt-10");
    std::vector<std::string> names;
    for (const int64_t number : numbers_in(folder))
      names.push_back(fmt::format("model.ckpt-{}", number));
    EXPECT_EQ(after.all, names);
    EXPECT_EQ(names.size(), static_cast<size_t>(keep.value_or(3)));
  }
}

TEST(Collect, ASaveToWhichTheStateFileWasSetBackStaysTheNewest) {
  TemporaryFolder folder;
  save_numbers(folder, {3, 5, 10});
  write_state_file(folder.path(), {"model.ckpt-5", {"model.ckpt-3", "model.ckpt-5"}});
  collect_garbage(folder.path(), {.keep = 2});
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-5");
  EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre("model.ckpt-5"));
}

TEST(Collect, RefusesWhileARunHoldsTheFolder) {
  TemporaryFolder run;
  std::filesystem::create_directory(run / "checkpoints");
  tests::put_bytes(run / "checkpoints/model.ckpt-4.index.tmp", "being written");
  {
    const files::FolderLock held(run.path());
    try {
      collect_garbage(run / "checkpoints", {});
      FAIL() << "a run may be writing";
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kCannotCreate);
      EXPECT_THAT(fault.what(), HasSubstr("nothing was removed"));
      EXPECT_THAT(fault.what(), HasSubstr(fmt::format("pid {}", ::getpid())));
    }
    EXPECT_TRUE(std::filesystem::exists(run / "checkpoints/model.ckpt-4.index.tmp"));
  }
  collect_garbage(run / "checkpoints", {});
  EXPECT_THAT(files::list(run / "checkpoints"), IsEmpty());
  EXPECT_THROW(collect_garbage(run / "nowhere", {}), Error);
}

}  // namespace gc_test
}  // namespace lockstep::checkpoint
