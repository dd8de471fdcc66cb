#include "base/log.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/temporary_folder.h"

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
TEST(Log, EveryLineOfOtherThreadsArrivesWhileTheFileChanges) {
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
  EXPECT_EQ(found, num_lines);
}

}  // namespace log_test
}  // namespace lockstep
