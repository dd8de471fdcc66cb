#include "metrics/tensorboard/summary.h"

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "temporary_folder.h"

namespace lockstep::summary {
namespace summary_test {

using metrics::EventFile;
using ::testing::HasSubstr;
using tests::TemporaryFolder;

/// An event file and what it holds.
class Written {
 public:
  DefaultWriterOptions at(int64_t step, RecordPolicy policy = {}) {
    return {.file = &file_, .step = step, .policy = policy};
  }
  /// Every byte so far.
  std::string bytes() {
    file_.flush();
    EXPECT_TRUE(file_.drain(std::chrono::seconds(20)));
    const std::vector<std::string> names = files::list(folder_.path());
    return names.empty() ? "" : files::read(folder_.path() / names.at(0));
  }
  size_t count(const std::string& text) {
    const std::string all = bytes();
    size_t found = 0;
    for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
    return found;
  }

 private:
  const TemporaryFolder folder_;
  EventFile file_{{.folder = folder_.path(), .node = "n"}};
};

TEST(Summary, C39_AWriterIsTheDefaultWithinItsScopeAndOnItsThread) {
  Written outer, inner;
  scalar("before", 1);
  EXPECT_FALSE(is_recorded());
  {
    const DefaultWriter writer(outer.at(7));
    EXPECT_TRUE(is_recorded());
    {
      const DefaultWriter other(inner.at(8));
      scalar("nested", 1);
    }
    scalar("again", 1);
    std::jthread([] { scalar("elsewhere", 1); }).join();
  }
  scalar("after", 1);
  EXPECT_EQ(outer.count("again"), 1u);
  EXPECT_EQ(inner.count("nested"), 1u);
  for (const char* tag : {"before", "nested", "elsewhere", "after"})
    EXPECT_EQ(outer.count(tag), 0u) << tag;
}

TEST(Summary, C42_C44_EachCallIsOneRecordAtItsStepOrThatOfTheScope) {
  Written file;
  const DefaultWriter writer(file.at(99));
  const size_t head = file.bytes().size();
  scalar("loss", 0.5);
  const std::string at_scope = file.bytes().substr(head);
  scalar("loss", 0.5, 98);
  EXPECT_EQ(file.count("loss"), 2u);
  EXPECT_THAT(at_scope, HasSubstr("\x10\x63"));      // field step: 99
  EXPECT_THAT(file.bytes(), HasSubstr("\x10\x62"));  // 98
}

TEST(Summary, C40_ThePolicyChoosesSteps) {
  Written file;
  for (int64_t step = 1; step <= 10; ++step) {
    const DefaultWriter writer(file.at(step, {.every_n_steps = 4}));
    EXPECT_EQ(is_recorded(), step == 4 || step == 8);
    scalar("sometimes", 1);
    scalar("explicit", 1, 4 * step);
  }
  EXPECT_EQ(file.count("sometimes"), 2u);
  EXPECT_EQ(file.count("explicit"), 10u);
}

TEST(Summary, C41_AMeanIsThatOfAllRanksAndNeedsThem) {
  Written file;
  DefaultWriterOptions options = file.at(3);
  options.world_size = 2;
  double seen = 0;
  options.mean_over_ranks = [&](double value) { return seen = (value + 3) / 2; };
  const DefaultWriter writer(options);
  mean_scalar("mean", 1);
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(file.count("mean"), 1u);
  const DefaultWriter alone(of_this_rank_alone());
  scalar("own", 1);
  EXPECT_EQ(file.count("own"), 1u);
  try {
    mean_scalar("mean", 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("mean_scalar('mean')"));
  }
}

TEST(Summary, ARankWithoutAFileTakesItsPartInMeansOfTheStepsThatAreWritten) {
  int num_calls = 0;
  for (int64_t step = 1; step <= 4; ++step) {
    const DefaultWriter writer({.step = step,
                                .policy = {.every_n_steps = 2},
                                .mean_over_ranks = [&](double value) { return ++num_calls, value; },
                                .world_size = 2});
    mean_scalar("mean", 1);
    scalar("own", 1);
  }
  EXPECT_EQ(num_calls, 2);
}

TEST(Summary, C45_HistogramsImagesSoundsAndText) {
  Written file;
  {
    const DefaultWriter writer(file.at(1));
    const std::array<float, 3> values{1, 2, 3};
    histogram("histogram", values);
    const std::array<uint8_t, 4> pixels{0, 64, 128, 255};
    image("image", pixels, 2, 2, 1);
    audio("sound", values, 8000, 1);
    text("note", "a **bold** word");
  }
  const std::string all = file.bytes();
  EXPECT_THAT(all, HasSubstr("histogram"));
  EXPECT_THAT(all, HasSubstr("\x89PNG"));
  EXPECT_THAT(all, HasSubstr("RIFF"));
  EXPECT_THAT(all, HasSubstr("a **bold** word"));
}

}  // namespace summary_test
}  // namespace lockstep::summary
