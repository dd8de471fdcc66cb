#include "daemon/serve/submit_desk.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace submit_desk_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void check(JobSpec* job) {
  EXPECT_EQ(std::filesystem::current_path(), job->folder);
  if (job->text.find("wrong") != std::string::npos)
    throw Error(ExitCode::kConfig, "config", "line 1 is wrong");
  job->run_name = "checked";
}

/// A queue with a run file beside it, and a server as far as server.json tells.
class SubmitDeskTest : public ::testing::Test {
 protected:
  SubmitDeskTest() {
    queue_.make();
    files::write_atomically(queue_.server_file(), "{}\n");
    write_run_file("run: {name: x}\n");
  }
  void write_run_file(const std::string& text) {
    files::write_atomically(options_.config_file, text);
  }
  /// What a client is told while the desk is looked at.
  std::optional<CommandResult> submit() {
    auto told = std::async(std::launch::async, [this] { return submit_at_desk(options_); });
    while (told.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready)
      if (desk_) desk_->look();
    return told.get();
  }
  std::vector<std::string> left() const { return files::list(queue_.root() / "submitted"); }

  tests::TemporaryFolder folder_;
  const JobQueue queue_{folder_.path() / "queue"};
  SubmitOptions options_{.queue = queue_.root().string(),
                         .config_file = (folder_.path() / "run.yaml").string(),
                         .sets = {"a=b"}};
  std::optional<SubmitDesk> desk_{std::in_place, queue_, check};
};

TEST_F(SubmitDeskTest, WhatPassesIsInTheQueueAndNothingElseIsLeft) {
  const auto before = std::filesystem::current_path();
  const std::optional<CommandResult> told = submit();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->text, "1\n");
  EXPECT_EQ(told->exit_code, 0);
  const std::optional<JobSpec> spec = queue_.spec(1);
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->run_name, "checked");
  EXPECT_EQ(spec->text, "run: {name: x}\n");
  EXPECT_THAT(spec->sets, ElementsAre("a=b"));
  EXPECT_THAT(left(), IsEmpty());
  EXPECT_EQ(std::filesystem::current_path(), before);
}

TEST_F(SubmitDeskTest, WhatIsWrongIsToldAndNotInTheQueue) {
  write_run_file("wrong\n");
  ::testing::internal::CaptureStderr();
  const std::optional<CommandResult> told = submit();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("[config] line 1 is wrong\n"));
  ASSERT_TRUE(told);
  EXPECT_EQ(told->exit_code, 78);
  EXPECT_EQ(told->text, "");
  EXPECT_THAT(queue_.numbers_in("queued"), IsEmpty());
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(SubmitDeskTest, WhereNobodyLooksTheJobIsTakenBack) {
  desk_.reset();
  files::make_folders(queue_.root() / "submitted");  // a killed server leaves it
  EXPECT_FALSE(submit());
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(SubmitDeskTest, OthersAreNotTakenThere) {
  const auto is_taken = [this] { return submit().has_value(); };
  write_run_file("data: {python: mine.py}\n");
  EXPECT_FALSE(is_taken()) << "it brings code";
  write_run_file("run: {name: x}\n");
  options_.estimator = "lib.so";
  EXPECT_FALSE(is_taken()) << "it brings code";
  options_.estimator = "";
  files::write_atomically(queue_.root() / "running/1.json", "{}");
  EXPECT_FALSE(is_taken()) << "the server is at work";
  files::remove_file(queue_.root() / "running/1.json");
  EXPECT_TRUE(is_taken());
  EXPECT_FALSE(is_taken()) << "one waits already";
}

TEST_F(SubmitDeskTest, AServerThatEndsMeanwhileIsSaid) {
  desk_.reset();
  const std::filesystem::path folder = queue_.root() / "submitted";
  files::make_folders(folder);
  auto told = std::async(std::launch::async, [this] { return submit_at_desk(options_); });
  while (left().empty() || !left()[0].ends_with(".json")) std::this_thread::yield();
  files::rename_file(folder / left()[0], folder / "taken");
  try {
    (void)told.get();
    ADD_FAILURE() << "no error";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUnavailable);
    EXPECT_THAT(fault.what(), HasSubstr("look at lockstep ps"));
  }
}

}  // namespace submit_desk_test
}  // namespace lockstep::daemon
