#include "job_server/submit_desk.h"

#include <cstdlib>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "support/temporary_folder.h"

namespace lockstep::job_server {
namespace submit_desk_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Checks a job in a child of this process.
void check(JobSpec* job) {
  if (std::filesystem::current_path() != job->folder)
    throw Error(ExitCode::kBug, "test", "the check has another working folder");
  if (job->text.find("hang") != std::string::npos) ::pause();
  if (job->text.find("crash") != std::string::npos) std::abort();
  if (job->text.find("wrong") != std::string::npos)
    throw Error(ExitCode::kConfig, "config", "line 1 is wrong");
  job->run_name = "checked";
}

/// A queue with a run file next to it, and a server according to server.json.
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
  /// Answer to a client while the desk is polled.
  std::optional<daemon::CommandResult> submit() {
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
                         .above = {.sets = {"a=b"}}};
  std::optional<SubmitDesk> desk_{std::in_place, queue_, check, /*check_limit_s=*/0.3};
};

TEST_F(SubmitDeskTest, WhatPassesIsInTheQueueAndNothingElseIsLeft) {
  const auto before = std::filesystem::current_path();
  const std::optional<daemon::CommandResult> told = submit();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->text, "1\n");
  EXPECT_EQ(told->exit_code, 0);
  const std::optional<JobSpec> spec = queue_.spec(1);
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->run_name, "checked");
  EXPECT_EQ(spec->text, "run: {name: x}\n");
  EXPECT_THAT(spec->above.sets, ElementsAre("a=b"));
  EXPECT_THAT(left(), IsEmpty());
  EXPECT_EQ(std::filesystem::current_path(), before);
}

TEST_F(SubmitDeskTest, WhatIsWrongIsToldAndNotInTheQueue) {
  write_run_file("wrong\n");
  ::testing::internal::CaptureStderr();
  const std::optional<daemon::CommandResult> told = submit();
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
  for (const char* text :
       {"data: {python: mine.py}\n", "plugins: [mine.so]\n", "estimator: {path: mine.so}\n",
        "model: {type: plugin, path: mine.so}\n", "model: {type: torchscript, path: mine.pt}\n",
        "\"pl\\x75gins\": [mine.so]\n"}) {
    write_run_file(text);
    EXPECT_FALSE(is_taken()) << text;
  }
  write_run_file("run: {name: x}\n");
  options_.above.estimator = "lib.so";
  EXPECT_FALSE(is_taken()) << "it brings code";
  options_.above.estimator = "";
  options_.above.sets = {"model.type=plugin"};
  EXPECT_FALSE(is_taken()) << "it brings code";
  options_.above.sets = {};
  files::write_atomically(queue_.root() / "running/1.json", "{}");
  EXPECT_FALSE(is_taken()) << "the server is at work";
  files::remove_file(queue_.root() / "running/1.json");
  EXPECT_TRUE(is_taken());
  EXPECT_FALSE(is_taken()) << "one waits already";
}

TEST_F(SubmitDeskTest, TheDeskItselfChecksNoCode) {
  const std::filesystem::path request = queue_.root() / "submitted/n1-1.json";
  files::write_atomically(request,
                          text_of(JobSpec{.text = "plugins: [wrong.so]\n", .folder = "/"}));
  desk_->look();
  while (desk_->is_busy()) std::this_thread::yield();
  EXPECT_EQ(files::read(queue_.root() / "submitted/n1-1.answer"), "{\"elsewhere\":true}");
}

TEST_F(SubmitDeskTest, AfterACheckThatHangsOrCrashesTheClientChecksItself) {
  for (const char* text : {"crash\n", "hang\n"}) {
    write_run_file(text);
    EXPECT_FALSE(submit()) << text;
    EXPECT_THAT(left(), IsEmpty());
    EXPECT_THAT(queue_.numbers_in("queued"), IsEmpty());
  }
  write_run_file("run: {name: x}\n");
  EXPECT_TRUE(submit()) << "the desk is open again";
}

TEST_F(SubmitDeskTest, ACheckThatHangsDoesNotKeepTheServerFromEnding) {
  desk_.reset();
  desk_.emplace(queue_, check, /*check_limit_s=*/1000);
  files::write_atomically(queue_.root() / "submitted/n1-1.json",
                          text_of(JobSpec{.text = "hang", .folder = "/"}));
  desk_->look();
  EXPECT_TRUE(desk_->is_busy());
  desk_.reset();  // hangs otherwise
  EXPECT_FALSE(std::filesystem::exists(queue_.root() / "submitted"));
}

TEST_F(SubmitDeskTest, ASuccessorOfTheServerThatTookARequestIsNotWaitedFor) {
  desk_.reset();
  const std::filesystem::path folder = queue_.root() / "submitted";
  files::make_folders(folder);
  std::optional<files::FolderLock> server(std::in_place, queue_.root());
  auto told = std::async(std::launch::async, [this] { return submit_at_desk(options_); });
  while (left().empty() || !left()[0].ends_with(".json")) std::this_thread::yield();
  std::filesystem::remove_all(folder);  // as the next server does
  server.reset();
  server.emplace(queue_.root());
  EXPECT_THROW((void)told.get(), Error);
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
    EXPECT_THAT(fault.what(), HasSubstr("check lockstep ps"));
  }
}

TEST_F(SubmitDeskTest, ATextWhoseAliasesUnfoldWithoutEndIsForTheClient) {
  std::string text = "a0: &a0 [x]\n";
  for (int i = 1; i <= 40; ++i)
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) +
            ", *a" + std::to_string(i - 1) + "]\n";
  write_run_file(text);
  EXPECT_FALSE(submit().has_value());
  EXPECT_THAT(left(), IsEmpty());
}

}  // namespace submit_desk_test
}  // namespace lockstep::job_server
