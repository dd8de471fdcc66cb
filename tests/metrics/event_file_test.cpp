#include "metrics/tensorboard/event_file.h"

#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.h"
#include "base/files/files.h"
#include "temporary_folder.h"
#include "tests/support/patience.h"

namespace lockstep::metrics {
namespace event_file_test {

using tests::TemporaryFolder;

uint32_t word_at(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

/// The data of each record; every checksum is looked at.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    EXPECT_EQ(word_at(bytes, at + 8), masked_crc32c(crc32c(bytes.substr(at, 8))));
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(word_at(bytes, at + 12 + length), masked_crc32c(crc32c(records.back())));
    at += 16 + length;
  }
  return records;
}

void add_loss(EventFile* file, int64_t step, double value) {
  file->add(step, std::vector<Scalar>{{"loss/train", value}});
}

/// Content of the folder's newest file.
std::string newest_in(const std::filesystem::path& folder) {
  return files::read(folder / files::list(folder).back());
}

/// Until the thread has done all so far, which need not be flushed.
constexpr TaskQueue::Milliseconds kLong{20'000};

TEST(EventMessage, BytesOfAScalarAreThoseWorkedOutByHand) {
  // wall_time 1.0; step 300; summary { value { tag: "a", simple_value: 0.5 } }
  const std::string wanted(
      "\x09\0\0\0\0\0\0\xf0\x3f"
      "\x10\xac\x02"
      "\x2a\x0a"
      "\x0a\x08"
      "\x0a\x01"
      "a"
      "\x15\0\0\0\x3f",
      24);
  EXPECT_EQ(scalars_event(1.0, 300, std::vector<Scalar>{{"a", 0.5}}), wanted);
}

TEST(EventMessage, AStartIsASessionLog) {
  EXPECT_EQ(start_event(1.0, 7), std::string("\x09\0\0\0\0\0\0\xf0\x3f"
                                             "\x10\x07"
                                             "\x3a\x02\x08\x01",
                                             15));
}

TEST(EventFile, BeginsWithTheVersionAndHoldsEveryPoint) {
  const TemporaryFolder folder;
  {
    EventFile file({.folder = folder.path() / "train", .node = "n1", .resumed_step = {}});
    add_loss(&file, 1, 0.5);
    add_loss(&file, 2, 0.25);
  }
  const std::vector<std::string> names = files::list(folder.path() / "train");
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(names[0].starts_with("events.out.tfevents.")) << names[0];
  const auto records = records_of(files::read(folder.path() / "train" / names[0]));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  EXPECT_NE(records[1].find(std::string("\x3a\x02\x08\x01", 4)), std::string::npos) << "START";
  EXPECT_NE(records[3].find("loss/train"), std::string::npos);
}

TEST(EventFile, TheFirstPointIsThereAtOnceAndLaterOnesAfterFlush) {
  const TemporaryFolder folder;
  EventFile file({.folder = folder.path(), .node = "n1", .resumed_step = {}, .flush_s = 3600});
  add_loss(&file, 1, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  EXPECT_EQ(records_of(newest_in(folder.path())).size(), 3u);
  add_loss(&file, 2, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  EXPECT_EQ(records_of(newest_in(folder.path())).size(), 3u);
  file.flush();
  ASSERT_TRUE(file.drain(kLong));
  EXPECT_EQ(records_of(newest_in(folder.path())).size(), 4u);
}

TEST(EventFile, APointIsWrittenInTimeThoughNoOtherComes) {
  const TemporaryFolder folder;
  EventFile file({.folder = folder.path(), .node = "n1", .resumed_step = {}, .flush_s = 0.2});
  add_loss(&file, 1, 0.5);
  add_loss(&file, 2, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  const auto num_records = [&] { return records_of(newest_in(folder.path())).size(); };
  EXPECT_TRUE(tests::comes_true([&] { return file.drain(kLong) && num_records() >= 4; }));
  EXPECT_EQ(num_records(), 4u) << "version, start, two points";
}

TEST(EventFile, TheAxisCanCountSamples) {
  const TemporaryFolder folder;
  EventFile file(
      {.folder = folder.path(), .node = "n1", .resumed_step = 2, .axis_units_per_step = 4});
  add_loss(&file, 3, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  const auto records = records_of(newest_in(folder.path()));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_NE(records[1].find(std::string("\x10\x09\x3a\x02\x08\x01", 6)), std::string::npos)
      << "START at sample 9";
  EXPECT_NE(records[2].find("\x10\x0c\x2a"), std::string::npos) << "the point at sample 12";
}

TEST(EventFile, AResumedRunTellsFromWhereItGoesOn) {
  const TemporaryFolder folder;
  EventFile file({.folder = folder.path(), .node = "n1", .resumed_step = 10});
  add_loss(&file, 11, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  const auto records = records_of(newest_in(folder.path()));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_NE(records[1].find(std::string("\x10\x0b\x3a\x02\x08\x01", 6)), std::string::npos)
      << "START at step 11";
}

TEST(EventFile, AFailingDiskCostsPointsAndNothingElse) {
  const TemporaryFolder folder;
  const auto blocked = folder.path() / "train";
  files::write_atomically(blocked, "a file where a folder should be");
  EventFile file({.folder = blocked, .node = "n1", .resumed_step = 4, .flush_s = 0});
  EXPECT_NO_THROW(add_loss(&file, 5, 0.5));
  EXPECT_NO_THROW(add_loss(&file, 6, 0.5));
  ASSERT_TRUE(file.drain(kLong));
  EXPECT_EQ(file.num_write_errors(), 2);
  files::remove_file(blocked);
  add_loss(&file, 7, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  EXPECT_EQ(file.num_write_errors(), 2);
  EXPECT_EQ(records_of(newest_in(blocked)).size(), 3u) << "version, start, the one point";
}

TEST(EventFile, AfterAFailureTheNextAttemptWaits) {
  const TemporaryFolder folder;
  const auto blocked = folder.path() / "train";
  files::write_atomically(blocked, "a file where a folder should be");
  EventFile file({.folder = blocked, .node = "n1", .resumed_step = {}, .flush_s = 3600});
  for (int64_t step = 1; step < 100; ++step) add_loss(&file, step, 0.5);
  ASSERT_TRUE(file.drain(kLong));
  EXPECT_EQ(file.num_write_errors(), 1);
}

TEST(EventFile, NobodyWaitsForAValueThatIsComputedOrADiskThatHangs) {
  const TemporaryFolder folder;
  std::promise<void> disk_goes_on;
  EventFile file({.folder = folder.path(), .node = "n1", .flush_s = 0, .capacity_bytes = 4096});
  const std::shared_future<void> hangs = disk_goes_on.get_future().share();
  file.add(
      1, "text", [hangs]() -> SummaryValue { return hangs.wait(), TextSummary{"late"}; }, 8);
  const tests::Patience patience(5);
  for (int64_t step = 2; step < 2000; ++step) add_loss(&file, step, 0.5);
  EXPECT_TRUE(patience.is_kept());
  EXPECT_FALSE(file.drain(TaskQueue::Milliseconds(1)));
  const int64_t num_lost = file.num_write_errors();
  EXPECT_GT(num_lost, 0) << "more than the capacity wait";
  disk_goes_on.set_value();
  while (!file.drain(kLong)) std::this_thread::yield();  // it gave up before
  const auto records = records_of(newest_in(folder.path()));
  EXPECT_EQ(static_cast<int64_t>(records.size()), 2 + 1 + 1998 - num_lost);
  EXPECT_NE(records[2].find("late"), std::string::npos) << "in the order of the calls";
}

}  // namespace event_file_test
}  // namespace lockstep::metrics
