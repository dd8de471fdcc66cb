// Requests that a session leaves to the next one of the same run.
#include <gtest/gtest.h>

#include "daemon/control/requests.h"

namespace lockstep::daemon {
namespace requests_test {

class Signals final : public StopRequest {
 public:
  void set_stop_signals(const std::vector<int>& /*signals*/) override {}
  bool stop_asked() const override { return false; }
  bool end_asked() const override { return false; }
  int64_t num_saves_asked() const override { return num_saves; }
  int64_t num_received(int /*signal_number*/) const override { return 0; }

  int64_t num_saves = 0;
};

std::string text_of(const std::vector<Change>& changes) {
  std::string text;
  for (const Change& one : changes) text += one.key + "=" + one.value + " ";
  return text;
}

TEST(Requests, ChangesStayThoughTheyAreTakenAndTheLastOfAKeyCounts) {
  Signals signals;
  Requests requests(signals);
  requests.change({"a", "1"});
  requests.change({"b", "2"});
  EXPECT_EQ(text_of(requests.take_changes()), "a=1 b=2 ");
  // A rank may be lost before the others hear of them.
  EXPECT_EQ(text_of(requests.open().changes), "a=1 b=2 ");
  requests.note_made({"a", "1"});
  requests.change({"a", "3"});
  EXPECT_EQ(text_of(requests.open().changes), "b=2 a=3 ");
}

TEST(Requests, NoSessionKillsARankAgain) {
  Signals signals;
  Requests requests(signals);
  const std::string kill(kKillRankKey);
  requests.change({"a", "1"});
  requests.change({kill, "1"});
  EXPECT_EQ(text_of(requests.open().changes), "a=1 ");
  EXPECT_EQ(text_of(requests.take_changes()), "a=1 " + kill + "=1 ");
  requests.note_made({kill, "1"});
  EXPECT_EQ(text_of(requests.open().changes), "a=1 ");
}

TEST(Requests, TheRootMakesThemAgainAndTheOthersKeepThemUntilTheyKnow) {
  Signals signals;
  const OpenRequests left{.stop = true, .pause = true, .changes = {{"a", "1"}}};
  Requests root(signals), other(signals);
  for (Requests* one : {&root, &other}) {
    one->note_step(7);
    one->reopen(left, /*is_root=*/one == &root);
    EXPECT_TRUE(one->open().stop && one->open().pause);
    EXPECT_EQ(text_of(one->open().changes), "a=1 ");
  }
  EXPECT_TRUE(root.stop_asked() && root.pause_asked() && root.has_changes());
  EXPECT_FALSE(other.stop_asked() || other.pause_asked() || other.has_changes());
  EXPECT_EQ(text_of(root.take_changes()), "a=1 ");
  root.set_paused(false);
  EXPECT_FALSE(root.open().pause);
  other.note_step(8);
  EXPECT_TRUE(other.open().pause);
  other.note_step(9);
  EXPECT_FALSE(other.open().stop || other.open().pause);
  EXPECT_EQ(text_of(other.open().changes), "a=1 ");
}

TEST(Requests, SavesThatSignalsAskedForAreNotMadeAgain) {
  Signals signals;
  signals.num_saves = 3;
  Requests requests(signals);
  EXPECT_EQ(requests.num_saves_asked(), 3);
  requests.reopen({}, /*is_root=*/true);
  EXPECT_EQ(requests.num_saves_asked(), 0);
  signals.num_saves = 4;
  requests.save();
  EXPECT_EQ(requests.num_saves_asked(), 2);
}

}  // namespace requests_test
}  // namespace lockstep::daemon
