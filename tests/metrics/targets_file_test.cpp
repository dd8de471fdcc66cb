#include "metrics/rank_pages.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "temporary_folder.h"

namespace lockstep::metrics {
namespace targets_file_test {

using tests::TemporaryFolder;

std::vector<Target> two_ranks(const std::string& run) {
  return {{"n1:9464", {{"run", run}, {"rank", "0"}}}, {"n1:9465", {{"run", run}, {"rank", "1"}}}};
}

TEST(TargetsFile, HoldsTheListAsLongAsTheObjectLives) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "targets.json";
  {
    const TargetsFile file(path, two_ranks("digits"));
    EXPECT_EQ(nlohmann::json::parse(files::read(path)), nlohmann::json::parse(R"([
        {"targets": ["n1:9464"], "labels": {"run": "digits", "rank": "0"}},
        {"targets": ["n1:9465"], "labels": {"run": "digits", "rank": "1"}}])"));
    EXPECT_EQ(files::list(folder.path()), std::vector<std::string>{"targets.json"})
        << "no temporary file stays";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

/// Number of targets that a reader finds now; nullopt if there is no file.
std::optional<size_t> targets_in(const std::filesystem::path& path) {
  try {
    return nlohmann::json::parse(files::read(path)).size();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInputMissing) << error.what();
    return std::nullopt;
  }
}

TEST(TargetsFile, ReadersSeeAWholeFileOrNone) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "targets.json";
  std::atomic<bool> done{false};
  std::thread writer([&] {
    const std::vector<Target> many(2000, two_ranks("new")[0]);
    for (int i = 0; i < 40; ++i) const TargetsFile file(path, many);
    done = true;
  });
  int num_seen = 0;
  while (!done) {
    const std::optional<size_t> num_targets = targets_in(path);
    EXPECT_EQ(num_targets.value_or(2000), 2000u);
    num_seen += num_targets ? 1 : 0;
  }
  writer.join();
  EXPECT_GT(num_seen, 0);
}

TEST(TargetsFile, OddNamesStayJson) {
  const auto list = nlohmann::json::parse(targets_json({{"h:1", {{"run", "a\"b\\\xff\n"}}}}));
  EXPECT_EQ(list[0]["labels"]["run"], "a\"b\\\xEF\xBF\xBD\n");
  EXPECT_EQ(nlohmann::json::parse(targets_json({})), nlohmann::json::array());
}

TEST(TargetsFile, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(TargetsFile("/nonexistent/targets.json", {}), Error);
}

}  // namespace targets_file_test
}  // namespace lockstep::metrics
