#include "base/log.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/files/files.h"
#include "support/temporary_folder.h"
#include "tests/support/patience.h"

namespace lockstep {
namespace log_test {

int64_t count_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  int64_t count = 0;
  for (std::string line; std::getline(file, line);)
    if (line.find("[thread] ") != std::string::npos) ++count;
  return count;
}

/// Threads of the HTTP server and of a lock's heartbeat log while the run's log file is opened.
void expect_every_line_while_the_file_changes() {
  constexpr int kNumFiles = 200, kNumThreads = 3;
  const tests::TemporaryFolder folder;
  const auto configure = [&](int file) {
    log::configure(
        {.console = log::Level::kError, .file = (folder.path() / std::to_string(file)).string()});
  };
  configure(0);
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> num_lines = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kNumThreads; ++t)
    threads.emplace_back([&] {
      do {
        log::info("thread", "a line");
        ++num_lines;
      } while (!is_over);
    });
  for (int file = 1; file < kNumFiles; ++file) configure(file);
  is_over = true;
  threads.clear();
  log::configure({});
  int64_t found = 0;
  for (int file = 0; file < kNumFiles; ++file)
    found += count_lines(folder.path() / std::to_string(file));
  EXPECT_EQ(found + log::num_lost(), num_lines);
}

class Log : public ::testing::Test {
 protected:
  Log() { log::count_anew(); }
  ~Log() override {
    log::configure_console({});
    log::configure({});
  }
};

TEST_F(Log, EveryLineOfOtherThreadsArrivesWhileTheFileChanges) {
  expect_every_line_while_the_file_changes();
  EXPECT_EQ(log::num_lost(), 0);
}

TEST_F(Log, InTheBackgroundEachLineArrivesOrIsCounted) {
  log::configure_console({.in_background = true});
  expect_every_line_while_the_file_changes();
}

TEST_F(Log, AFileBeginsWithTheLinesOfBeforeItWasOpen) {
  const tests::TemporaryFolder folder;
  const std::string file = (folder.path() / "log").string(), next = file + ".next";
  log::info("other", "of the job before");
  log::count_anew();
  log::info("start", "first");
  log::debug("start", "second");
  log::configure({.rank = 1, .world_size = 2});
  log::info("start", "third");
  log::configure({.rank = 1, .world_size = 2, .file = file});
  log::info("run", "fourth");
  log::configure({.file = next});
  log::info("run", "fifth");
  log::configure({});
  EXPECT_THAT(files::read(file),
              ::testing::MatchesRegex(".* I rank 1 .start. first\n.* D rank 1 .start. second\n"
                                      ".* I rank 1 .start. third\n.* I rank 1 .run. fourth\n"));
  EXPECT_THAT(files::read(next), ::testing::MatchesRegex(".* I .run. fifth\n"));
}

/// stderr as a pipe that is not read until the test asks for the text.
class FullPipe {
 public:
  FullPipe() : before_(::dup(STDERR_FILENO)) {
    EXPECT_EQ(::pipe(ends_), 0);
    EXPECT_GT(::fcntl(ends_[1], F_SETPIPE_SZ, 4096), 0);
    ::dup2(ends_[1], STDERR_FILENO);
    ::close(ends_[1]);
  }
  ~FullPipe() {
    ::close(ends_[0]);
    restore();
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;
  void restore() {
    if (before_ < 0) return;
    ::dup2(before_, STDERR_FILENO);
    ::close(std::exchange(before_, -1));
  }
  /// Until a text has come.
  std::string read_to(const std::string& text) {
    std::string all;
    char bytes[4096];
    while (all.find(text) == std::string::npos) {
      const ssize_t num_bytes = ::read(ends_[0], bytes, sizeof(bytes));
      if (num_bytes <= 0) return all;
      all.append(bytes, static_cast<size_t>(num_bytes));
    }
    return all;
  }

 private:
  int ends_[2] = {-1, -1};
  int before_;
};

TEST_F(Log, NobodyWaitsForAPipeThatIsNotRead) {
  constexpr int kNumLines = 20'000;
  const tests::TemporaryFolder folder;
  const std::string file = (folder.path() / "log").string();
  FullPipe pipe;
  log::configure_console({.in_background = true});
  log::configure({.file = file});
  const tests::Patience patience(10);
  for (int i = 0; i < kNumLines; ++i) {
    log::info("thread", "a line");
    if (i % 500 == 499) {
      EXPECT_FALSE(log::flush(0.01)) << "the pipe is full";
    }
  }
  EXPECT_TRUE(patience.is_kept());
  log::print("a box\n");
  const int64_t num_lost = log::num_lost();
  EXPECT_GT(num_lost, kNumLines / 2) << "of stderr: it holds a megabyte of lines";
  std::thread reader([&] {
    const std::string all = pipe.read_to("the end");
    EXPECT_NE(all.find(" lines before this one are lost"), std::string::npos) << all.size();
  });
  while (!log::flush(1)) std::this_thread::yield();
  log::info("run", "the end");
  reader.join();
  while (!log::flush(1)) std::this_thread::yield();
  EXPECT_GT(count_lines(file), kNumLines - num_lost) << "the file is not behind the pipe";
  pipe.restore();
}

TEST_F(Log, AnErrorIsWaitedFor) {
  const tests::TemporaryFolder folder;
  const std::string file = (folder.path() / "log").string();
  log::configure_console({.in_background = true});
  log::configure({.console = log::Level::kError, .file = file});
  for (int i = 0; i < 50; ++i) {
    log::info("thread", "a line");
    log::error("thread", "a fault");
    EXPECT_EQ(count_lines(file), 2 * (i + 1));
  }
}

}  // namespace log_test
TEST(LogText, PasswordsStandInNoText) {
  EXPECT_EQ(log::without_passwords("push to http://me:se:cr@t@gate:9091/x and https://a:b@c"),
            "push to http://me:***@gate:9091/x and https://a:***@c");
  EXPECT_EQ(log::without_passwords("https://a1b2c3@gate:9091/x"), "https://***@gate:9091/x");
  for (const char* text : {"http://gate:9091/a:b@c", "a://", "x: y@z", "s3://bucket/key?a:b@c", ""})
    EXPECT_EQ(log::without_passwords(text), text);
}

}  // namespace lockstep
