#include "dist/cpu/peer.h"

#include <gtest/gtest.h>

namespace lockstep::dist::cpu {
namespace peer_test {

TEST(Peer, ThisProcessIsSeenToRun) { EXPECT_TRUE(is_running_here(this_process())); }

TEST(Peer, AnEqualProcessNumberElsewhereIsNotTakenForTheOneHere) {
  Peer another_boot = this_process();
  another_boot.boot_id[0] = another_boot.boot_id[0] == '0' ? '1' : '0';
  EXPECT_FALSE(is_running_here(another_boot)) << "another host";
  Peer another_space = this_process();
  another_space.pid_space += 1;
  EXPECT_FALSE(is_running_here(another_space)) << "another container";
}

TEST(Peer, ALaterProcessWithTheSameNumberIsAnother) {
  Peer earlier = this_process();
  earlier.start_time -= 1;
  EXPECT_FALSE(is_running_here(earlier));
}

}  // namespace peer_test
}  // namespace lockstep::dist::cpu
