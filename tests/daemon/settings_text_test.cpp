#include "daemon/config/checkpoint_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::daemon {
namespace settings_text_test {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::SizeIs;

TEST(SettingsBySection, HasALineForEachSection) {
  EXPECT_THAT(settings_by_section({"data.train.split=train", "data.train.type=digits",
                                   "modifiers[0].params=__ALL__", "modifiers[1].params=a",
                                   "recipe sha256=ab", "run.name=a=b", "version=1.0.0"}),
              ElementsAre("data: train.split=train, train.type=digits",
                          "modifiers: [0].params=__ALL__, [1].params=a", "recipe sha256=ab",
                          "run: name=a=b", "version=1.0.0"));
  EXPECT_THAT(settings_by_section({}), SizeIs(0));
}

TEST(SettingsBySection, CutsWhatIsLong) {
  const std::string long_value = "first\nsecond" + std::string(500, 'x');
  EXPECT_THAT(settings_by_section({"a.b=" + long_value}),
              ElementsAre("a: b=first second" + std::string(68, 'x') + "..."));
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back("a.key" + std::to_string(100 + i) + "=1");
  const std::vector<std::string> lines = settings_by_section(many);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], EndsWith(", and 60 more"));
  EXPECT_LT(lines[0].size(), 430u);
}

}  // namespace settings_text_test
}  // namespace lockstep::daemon
