#include "base/diagnostics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace nearest_word_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NearestWord, IsATypoOrNothing) {
  EXPECT_EQ(nearest_word("momentun", {"adam", "momentum", "sgd"}), "momentum");
  EXPECT_EQ(nearest_word("rmsprop", {"adam", "momentum", "sgd"}), "");
}

TEST(NearestWord, SeveralComeByDistance) {
  // 0, 1 (a removal), 2, 3 edits; of equal ones the first.
  EXPECT_THAT(nearest_words("head", {"hat", "heads", "tail", "head", "heat"}, 4),
              ElementsAre("head", "heads", "heat", "hat"));
  EXPECT_THAT(nearest_words("x", {"a", "b", "c", "d", "e", "f"}),
              ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(nearest_words("x", {}), IsEmpty());
  const std::string long_name(1000, 'n');
  EXPECT_THAT(nearest_words(long_name, {long_name}), ElementsAre(long_name));
}

}  // namespace nearest_word_test
}  // namespace lockstep
