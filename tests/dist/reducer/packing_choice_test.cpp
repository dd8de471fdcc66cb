#include "dist/reduction_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace packing_choice_test {

constexpr int kSteps = 2 + 2 * Autotuner::kRounds;
/// Packing pays for bucket 0, not for 1; bucket 2 cannot be packed.
const std::vector<bool> kCanPack{true, true, false};

std::vector<ItemSeconds> seconds_of(const PackingChoice& choice) {
  return {{0, choice.packs(0) ? 1.0 : 5.0}, {choice.packs(1) ? 9.0 : 5.0, 0}, {1, 1}};
}

void measure(PackingChoice* choice, Communicator& comm) {
  for (int step = 0; step < kSteps; ++step)
    EXPECT_EQ(choice->add_step(seconds_of(*choice), comm), step + 1 == kSteps);
  EXPECT_FALSE(choice->is_measuring());
}

std::vector<bool> packed_now(const PackingChoice& choice) {
  return {choice.packs(0), choice.packs(1), choice.packs(2)};
}

TEST(PackingChoice, AlwaysAndNeverMeasureNothing) {
  PackingChoice always("always"), never("never");
  always.follow(kCanPack, 1);
  never.follow(kCanPack, 1);
  EXPECT_FALSE(always.is_measuring() || never.is_measuring());
  EXPECT_EQ(packed_now(always), kCanPack);
  EXPECT_EQ(packed_now(never), (std::vector<bool>{false, false, false}));
  EXPECT_THROW(PackingChoice("sometimes"), Error);
}

TEST(PackingChoice, AutoKeepsTheFasterWayByBucket) {
  tests::run_ranks(2, [](Communicator& comm) {
    PackingChoice choice("auto");
    choice.follow(kCanPack, 1);
    EXPECT_TRUE(choice.is_measuring());
    EXPECT_EQ(packed_now(choice), (std::vector<bool>{false, false, false}));
    (void)choice.add_step(seconds_of(choice), comm);
    EXPECT_EQ(packed_now(choice), kCanPack);
    choice.follow(kCanPack, 1);
    measure(&choice, comm);
    EXPECT_EQ(packed_now(choice), (std::vector<bool>{true, false, false}));
    EXPECT_FALSE(choice.add_step({{}, {}, {}}, comm)) << "the trial is over";
    choice.follow(kCanPack, 2);
    EXPECT_TRUE(choice.is_measuring()) << "other masks are measured anew";
  });
}

TEST(PackingChoice, NothingToPackIsNothingToMeasure) {
  PackingChoice choice("auto");
  choice.follow({false, false}, 1);
  EXPECT_FALSE(choice.is_measuring());
  EXPECT_FALSE(choice.packs(0) || choice.packs(1));
}

TEST(PackingChoice, ARunThatGoesOnRepeatsTheChoice) {
  tests::run_ranks(2, [](Communicator& comm) {
    PackingChoice before("auto");
    before.follow(kCanPack, 0xabc);
    EXPECT_EQ(*before.state().at(0).text, "");
    measure(&before, comm);
    const std::string saved = *before.state().at(0).text;
    EXPECT_EQ(saved, "0000000000000abc 100");

    PackingChoice after("auto");
    *after.state().at(0).text = saved;  // as a restore does
    after.follow(kCanPack, 0xabc);
    EXPECT_FALSE(after.is_measuring());
    EXPECT_EQ(packed_now(after), (std::vector<bool>{true, false, false}));

    for (const std::string other : {"0000000000000abd 100", "0000000000000abc 1001", ""}) {
      *after.state().at(0).text = other;
      after.follow(kCanPack, 0xabc);
      EXPECT_TRUE(after.is_measuring()) << other;
    }
    *after.state().at(0).text = "0000000000000abc 111";
    after.follow(kCanPack, 0xabc);
    EXPECT_EQ(packed_now(after), kCanPack) << "what cannot be packed is not";
  });
}

}  // namespace packing_choice_test
}  // namespace lockstep::dist
