#include "job_server/job_queue.h"

#include <atomic>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "support/temporary_folder.h"

namespace lockstep::job_server {
namespace job_queue_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobSpec spec_of(const std::string& run) {
  return {.file = "/data/run.yaml",
          .text = "run: {name: \"\xC3\xA4\"}\n\ttab\n",
          .folder = "/data",
          .above = {.sets = {"a=b", "c='d'"}, .estimator = "lib.so", .flags = {"--width", "64"}},
          .run_name = run,
          .submitted = "2026-01-01 00:00:00"};
}

std::string refusal(ExitCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

class Queue : public ::testing::Test {
 protected:
  std::filesystem::path file(const char* place, int64_t id) const {
    return queue.root() / place / (std::to_string(id) + ".json");
  }

  const tests::TemporaryFolder folder;
  const JobQueue queue{folder.path() / "queue"};
};

TEST_F(Queue, AJobComesBackAsItWasSubmitted) {
  const int64_t id = queue.submit(spec_of("one"));
  EXPECT_EQ(id, 1);
  EXPECT_EQ(queue.state(id), JobState::kQueued);
  const std::optional<Job> job = queue.take();
  ASSERT_TRUE(job);
  EXPECT_EQ(job->id, 1);
  EXPECT_EQ(text_of(job->spec), text_of([&] {
              JobSpec wanted = spec_of("one");
              wanted.project_dir = (queue.folder(1) / "run").string();
              return wanted;
            }()));
  EXPECT_EQ(queue.state(id), JobState::kRunning);
}

TEST_F(Queue, JobsComeInTheOrderOfTheirNumbersTenAfterNine) {
  for (int i = 0; i < 11; ++i) (void)queue.submit(spec_of("run"));
  std::vector<int64_t> order;
  while (const std::optional<Job> job = queue.take()) {
    order.push_back(job->id);
    queue.end(*job, {.state = JobState::kDone});
    EXPECT_EQ(queue.state(job->id), JobState::kDone);
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_EQ(queue.submit(spec_of("later")), 12);
}

TEST_F(Queue, WhatRunsComesFirstAndIsPutBackFirst) {
  (void)queue.submit(spec_of("one"));
  (void)queue.submit(spec_of("two"));
  std::optional<Job> job = queue.take();
  job->spec.tries = 2;
  queue.note(*job);  // and the server is killed
  job = queue.take();
  EXPECT_EQ(job->id, 1);
  EXPECT_EQ(job->spec.tries, 2);
  queue.put_back(*job);
  EXPECT_EQ(queue.state(1), JobState::kQueued);
  EXPECT_EQ(queue.take()->id, 1);
}

TEST_F(Queue, AnEndThatWasWrittenDownCountsThoughTheFileWasNotMoved) {
  (void)queue.submit(spec_of("one"));
  const Job job = *queue.take();
  files::write_atomically(queue.folder(1) / "result.json",
                          text_of({.state = JobState::kFailed, .exit_code = 78}, job.spec));
  EXPECT_EQ(queue.state(1), JobState::kFailed);
  EXPECT_FALSE(queue.take());
  EXPECT_THAT(queue.numbers_in("running"), IsEmpty());
  EXPECT_EQ(queue.result(1)->exit_code, 78);
}

TEST_F(Queue, WhatCannotBeReadIsSetAsideAndTheNextOneComes) {
  for (int i = 0; i < 3; ++i) (void)queue.submit(spec_of("run"));
  const std::string whole = files::read(file("queued", 1));
  for (size_t size = 0; size < whole.size() - 1; size += 7) {  // the last byte is a line's end
    EXPECT_THROW((void)parse_job("1.json", whole.substr(0, size)), Error) << size;
  }
  std::ofstream(file("queued", 1)) << whole.substr(0, whole.size() / 2);
  std::ofstream(file("queued", 2)) << "{\"version\": 2}";
  EXPECT_EQ(queue.take()->id, 3);
  EXPECT_EQ(queue.state(1), JobState::kSetAside);
  EXPECT_EQ(queue.state(2), JobState::kSetAside);
  EXPECT_EQ(files::read(file("set_aside", 1)), whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refusal(ExitCode::kBadData, [] { (void)parse_job("x", "{\"version\": 2}"); }),
              HasSubstr("x: it has version 2, this program reads version 1"));
}

TEST_F(Queue, OtherFilesInItAreNoJobs) {
  queue.make();
  for (const char* name : {"01.json", "1.json.tmp", "a.json", "-1.json", "0.json", "1.txt"})
    std::ofstream(queue.root() / "queued" / name) << "{}";
  EXPECT_THAT(queue.numbers_in("queued"), IsEmpty());
  EXPECT_FALSE(queue.take());
}

TEST_F(Queue, CancelEndsWhatWaitsAndAsksWhatRuns) {
  (void)queue.submit(spec_of("one"));
  (void)queue.submit(spec_of("two"));
  const Job job = *queue.take();
  EXPECT_EQ(queue.cancel(2), JobState::kCancelled);
  EXPECT_EQ(queue.state(2), JobState::kCancelled);
  EXPECT_EQ(queue.result(2)->exit_code, 75);
  EXPECT_EQ(queue.cancel(1), JobState::kRunning);
  EXPECT_TRUE(std::filesystem::exists(queue.cancel_file(1)));
  queue.end(job, {.state = JobState::kCancelled, .exit_code = 75});
  EXPECT_FALSE(std::filesystem::exists(queue.cancel_file(1)));
  EXPECT_FALSE(queue.take());
  EXPECT_THAT(refusal(ExitCode::kUsage, [&] { (void)queue.cancel(1); }),
              HasSubstr("job 1 has already ended (cancelled)"));
  EXPECT_THAT(refusal(ExitCode::kInputMissing, [&] { (void)queue.cancel(3); }),
              HasSubstr("has no job 3"));
}

TEST_F(Queue, LimitsOnNumberAndSizeAreSaid) {
  files::make_folders(queue.root());
  files::write_atomically(queue.server_file(), "{\"max_queued\": 1}");
  JobSpec large = spec_of("large");
  large.text = std::string(JobQueue::kMaxJobBytes, ' ');
  EXPECT_THAT(refusal(ExitCode::kUsage, [&] { (void)queue.submit(large); }),
              HasSubstr("the limit is 4194304"));
  (void)queue.submit(spec_of("one"));
  EXPECT_THAT(refusal(ExitCode::kUnavailable, [&] { (void)queue.submit(spec_of("two")); }),
              HasSubstr("1 jobs already wait in"));
}

/// Four that submit, one that cancels what it sees, and a server: each job ends once.
TEST_F(Queue, ManyAtOnceLoseNothingAndDoNothingTwice) {
  constexpr int kNumSubmitters = 4, kNumEach = 25, kNumJobs = kNumSubmitters * kNumEach;
  queue.make();
  std::atomic<int> num_cancelled = 0;
  std::multiset<int64_t> ran;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kNumSubmitters; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < kNumEach; ++i) (void)queue.submit(spec_of("run"));
      });
    threads.emplace_back([&] {
      for (int64_t id = 1; id <= kNumJobs; id += 3) {
        while (!queue.state(id)) std::this_thread::yield();
        try {
          if (queue.cancel(id) == JobState::kCancelled) ++num_cancelled;
        } catch (const Error&) {
          // it has ended
        }
      }
    });
    while (static_cast<int>(ran.size()) + num_cancelled < kNumJobs)
      if (const std::optional<Job> job = queue.take()) {
        ran.insert(job->id);
        queue.end(*job, {.state = JobState::kDone});
      }
  }
  EXPECT_EQ(std::set<int64_t>(ran.begin(), ran.end()).size(), ran.size());
  EXPECT_EQ(static_cast<int>(ran.size()) + num_cancelled, kNumJobs);
  for (int64_t id = 1; id <= kNumJobs; ++id)
    EXPECT_EQ(queue.state(id), ran.contains(id) ? JobState::kDone : JobState::kCancelled);
}

TEST_F(Queue, IsMadeForItsUserAlone) {
  const mode_t before = ::umask(0);
  const int64_t id = queue.submit(spec_of("one"));
  ::umask(before);
  for (const auto& path : {queue.root(), queue.root() / "queued", queue.root() / "running",
                           queue.root() / "set_aside", queue.root() / "jobs", queue.folder(id)}) {
    struct stat facts {};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0) << path;
    EXPECT_EQ(facts.st_mode & 0777, 0700U) << path;
  }
}

TEST_F(Queue, IsRefusedWhereOthersMayWrite) {
  queue.make();
  for (const char* place : {"", "jobs"}) {
    ASSERT_EQ(::chmod((queue.root() / place).c_str(), 0770), 0);
    EXPECT_THAT(refusal(ExitCode::kCannotCreate, [&] { queue.make(); }),
                HasSubstr("is writable by other users"));
    ASSERT_EQ(::chmod((queue.root() / place).c_str(), 0700), 0);
  }
}

class QueueOfOthers : public Queue {};

TEST_F(QueueOfOthers, FilesAreSetAside) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const int64_t id = queue.submit(spec_of("one"));
  ASSERT_EQ(::chown(file("queued", id).c_str(), 65534, 65534), 0);
  EXPECT_FALSE(queue.take());
  EXPECT_EQ(queue.state(id), JobState::kSetAside);
}

TEST(JobQueue, AFolderWithAVastNumberIsNoJob) {
  const tests::TemporaryFolder folder;
  const JobQueue queue(folder.path());
  queue.submit(spec_of("a"));
  std::filesystem::create_directory(folder.path() / "jobs" / "9223372036854775807");
  EXPECT_EQ(queue.submit(spec_of("b")), 2);
}

}  // namespace job_queue_test
}  // namespace lockstep::job_server
