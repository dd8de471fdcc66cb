#include "job_server/failed_job.h"

#include <chrono>
#include <optional>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/project.h"
#include "daemon/control/failure.h"
#include "support/temporary_folder.h"

namespace lockstep::job_server {
namespace failed_job_test {

constexpr int kLost = static_cast<int>(ExitCode::kUnavailable);
constexpr int kBug = static_cast<int>(ExitCode::kBug);

class OneJob : public ::testing::Test {
 protected:
  OneJob() {
    queue.make();
    (void)queue.submit({.file = "/data/run.yaml", .text = "", .folder = "/data", .run_name = "a"});
  }
  /// Begins a job as the server does.
  Job begin() const {
    Job job = queue.take().value();
    ++job.spec.tries;
    queue.note(job);
    return job;
  }
  static void tell(const Job& job, int exit_code, double seconds_from_now) {
    const double now_s =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    daemon::write_failure(Project(job.spec.project_dir).logs(),
                          {.rank = 1,
                           .exit_code = exit_code,
                           .message = "its cause",
                           .unix_time_s = now_s + seconds_from_now});
  }

  const tests::TemporaryFolder folder;
  const JobQueue queue{folder.path() / "queue"};
};

TEST_F(OneJob, FailsWithWhatNoOtherTryMends) {
  FailedJob failed(queue);
  const Job job = begin();
  ASSERT_TRUE(failed.note(kBug));
  EXPECT_EQ(queue.state(job.id), JobState::kFailed);
  EXPECT_EQ(queue.result(job.id)->exit_code, kBug);
  EXPECT_EQ(queue.result(job.id)->message, "its ranks ended with 70");
}

TEST_F(OneJob, FailsWithTheCauseWhereOthersLostTheRankFirst) {
  FailedJob failed(queue);
  const Job job = begin();
  tell(job, kBug, 0);
  ASSERT_TRUE(failed.note(kLost));
  EXPECT_EQ(queue.result(job.id)->exit_code, kBug);
  EXPECT_EQ(queue.result(job.id)->message, "its cause");
}

TEST_F(OneJob, IsNotTriedAgainByTheNextServerWhereARankHasToldWhy) {
  Job job = begin();
  EXPECT_FALSE(told_by_last_try(queue, job)) << "no rank has said anything";
  tell(job, kLost, 0.1);
  EXPECT_FALSE(told_by_last_try(queue, job)) << "worth another try";
  tell(job, kBug, 0.1);
  ASSERT_TRUE(told_by_last_try(queue, job));
  EXPECT_EQ(told_by_last_try(queue, job)->exit_code, kBug);
  tell(job, kBug, -60);
  EXPECT_FALSE(told_by_last_try(queue, job)) << "of an earlier start";
}

TEST_F(OneJob, KeepsItsPlaceAfterAFaultOfTheHost) {
  FailedJob failed(queue);
  const Job job = begin();
  tell(job, static_cast<int>(ExitCode::kIo), 0);
  EXPECT_FALSE(failed.note(kLost)) << "a person must look at the disk first";
  EXPECT_EQ(queue.state(job.id), JobState::kQueued);
  EXPECT_EQ(queue.take()->spec.tries, 0) << "no try of the job";
}

TEST(IsOfHost, AMissingFileThatTheJobDoesNotName) {
  const JobSpec job{.file = "/data/run.yaml",
                    .text = "data: {train: {type: digits, path: own/digits.csv}}",
                    .folder = "/gone",
                    .above = {.sets = {"recipe=prune.yaml"}}};
  const auto is_missing = [&](const std::string& what) {
    return is_of_host(ExitCode::kInputMissing, what, job);
  };
  EXPECT_FALSE(is_missing("[data] rank 0: /data/own/digits.csv: no such file; mend it"));
  EXPECT_FALSE(is_missing("[files] prune.yaml: no such file in /data"));
  EXPECT_TRUE(is_missing("[serve] /gone, where the job was submitted: No such file or directory"));
  EXPECT_TRUE(is_missing("[data] rank 1: /mnt/cache/blocks.bin: no such file"));
  EXPECT_TRUE(is_of_host(ExitCode::kIo, "", job));
  EXPECT_TRUE(is_of_host(ExitCode::kCannotCreate, "", job));
  EXPECT_FALSE(is_of_host(ExitCode::kConfig, "", job));
}

TEST_F(OneJob, GoesOnAfterLostRanks) {
  FailedJob failed(queue);
  const Job job = begin();
  EXPECT_FALSE(failed.note(kLost));
  tell(job, kBug, -60);  // of an earlier run in that folder
  (void)begin();
  EXPECT_FALSE(failed.note(kLost));
  EXPECT_EQ(queue.state(job.id), JobState::kRunning);
}

TEST_F(OneJob, IsNotBlamedWhereTheServerWasRefused) {
  EXPECT_FALSE(FailedJob(queue).note(kBug));
  const Job job = begin();  // and that server was killed
  FailedJob failed(queue);
  EXPECT_FALSE(failed.note(kBug));
  EXPECT_EQ(queue.state(job.id), JobState::kRunning);
  (void)begin();
  EXPECT_FALSE(failed.note(kLost));
  EXPECT_FALSE(failed.note(kBug)) << "the next server did not come as far";
}

}  // namespace failed_job_test
}  // namespace lockstep::job_server
