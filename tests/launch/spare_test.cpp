#include "launch/attempt.h"

#include <csignal>

#include <gtest/gtest.h>

#include "launch/processes.h"
#include "tests/support/patience.h"

namespace lockstep::launch {
namespace spare_test {

using Command = std::vector<std::string>;

/// Reads a word and ends with 7, or with 1 where the input ends without one.
const Command kWaits{"sh", "-c", "read word && exit 7"};

int code_of(Child* child) {
  std::optional<int> code;
  EXPECT_TRUE(tests::comes_true([&] { return (code = child->poll()).has_value(); }));
  return code.value_or(-1);
}

TEST(Spare, GoesOnWhenItIsTaken) {
  Spare spare;
  EXPECT_FALSE(spare.waits());
  EXPECT_EQ(spare.pid(), -1);
  EXPECT_EQ(spare.take(kWaits), nullptr);
  spare.begin(kWaits, {});
  EXPECT_TRUE(spare.waits());
  const pid_t pid = spare.pid();
  spare.begin(kWaits, {});
  EXPECT_EQ(spare.pid(), pid) << "one is enough";
  const std::unique_ptr<Child> taken = spare.take(kWaits);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->pid(), pid);
  EXPECT_EQ(code_of(taken.get()), 7);
  EXPECT_FALSE(spare.waits());
}

TEST(Spare, OfAnotherCommandIsGivenUp) {
  adopt_orphans();
  Spare spare;
  spare.begin(kWaits, {});
  EXPECT_EQ(spare.take({"sh", "-c", "other hosts"}), nullptr);
  EXPECT_FALSE(spare.waits());
  EXPECT_TRUE(tests::comes_true([] { return descendants().empty(); })) << "it ends by itself";
}

TEST(Spare, ThatEndsUnaskedIsBegunThreeTimes) {
  Spare spare;
  int num_begun = 0;
  for (int i = 0; i < 5; ++i) {
    spare.begin({"false"}, {});
    num_begun += spare.pid() > 0 ? 1 : 0;
    EXPECT_TRUE(tests::comes_true([&] { return !spare.waits(); }));
  }
  EXPECT_EQ(num_begun, 3);
}

}  // namespace spare_test
}  // namespace lockstep::launch
