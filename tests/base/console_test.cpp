#include "base/log.h"

#include <filesystem>
#include <fstream>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.h"

namespace lockstep {
namespace console_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Console : public ::testing::Test {
 protected:
  ~Console() override {
    log::configure_console({});
    log::configure({});
  }
  /// Returns the stderr output of `write`.
  template <class Write>
  static std::string told(const log::ConsoleOptions& options, Write write) {
    log::configure_console(options);
    ::testing::internal::CaptureStderr();
    write();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Console, AQuietOneHasWarningsAlone) {
  const tests::TemporaryFolder folder;
  const std::string file = (folder.path() / "log").string();
  log::configure({.file = file});
  const std::string text = told({.level = log::Level::kWarning}, [] {
    log::info("run", "a step");
    log::warning("run", "a danger");
  });
  EXPECT_THAT(text, HasSubstr(" W [run] a danger\n"));
  EXPECT_THAT(text, Not(HasSubstr("a step")));
  std::ifstream read(file);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(read), {}),
              HasSubstr(" I [run] a step\n"));
}

TEST_F(Console, JsonHasAnObjectALine) {
  log::configure({.rank = 3, .world_size = 4});
  const std::string text =
      told({.json = true}, [] { log::error("run", "a \"quoted\" [part] \xff\nof two lines"); });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const nlohmann::json line = nlohmann::json::parse(text);
  EXPECT_EQ(line["level"], "error");
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["area"], "run");
  EXPECT_EQ(line["message"], "a \"quoted\" [part] \xef\xbf\xbd\nof two lines");
  EXPECT_TRUE(std::regex_match(line["time"].get<std::string>(),
                               std::regex(R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ)")));
}

TEST_F(Console, TheStatusStaysBelowTheLines) {
  const std::string text = told({.is_terminal = true}, [] {
    log::status("[##--] half");
    log::info("run", "a line");
    log::status("");
    log::info("run", "the end");
  });
  const std::string time = R"(\d{4}-\d\d-\d\dT\S+)";
  EXPECT_TRUE(std::regex_match(
      text, std::regex("\\[##--\\] half\r\x1b\\[K" + time + " I \\[run\\] a line\n\\[##--\\] half" +
                       "\r\x1b\\[K" + time + " I \\[run\\] the end\n")))
      << text;
}

TEST_F(Console, TheStatusIsCutAtTheTerminalsWidth) {
  const std::string text = told({.is_terminal = true}, [] { log::status(std::string(1000, 'x')); });
  EXPECT_EQ(text, std::string(79, 'x'));  // no terminal tells, so 80 columns
  log::status("");
}

TEST_F(Console, NoStatusWhereNobodyWatches) {
  EXPECT_THAT(told({}, [] { log::status("[##--] half"); }), IsEmpty());
}

TEST_F(Console, ColorsAreOfWarningsAndErrors) {
  const auto write = [] {
    log::info("run", "a step");
    log::warning("run", "a danger");
    log::error("run", "an end");
  };
  const std::string colored = told({.colors = true}, write);
  EXPECT_TRUE(
      std::regex_search(colored, std::regex("\x1b\\[33m\\S+ W \\[run\\] a danger\n\x1b\\[0m")));
  EXPECT_TRUE(
      std::regex_search(colored, std::regex("\x1b\\[31m\\S+ E \\[run\\] an end\n\x1b\\[0m")));
  EXPECT_THAT(told({}, write), Not(HasSubstr("\x1b")));
}

}  // namespace console_test
}  // namespace lockstep
