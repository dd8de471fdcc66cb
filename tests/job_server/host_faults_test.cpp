#include "job_server/failed_job.h"

#include <gtest/gtest.h>

namespace lockstep::job_server {
namespace host_faults_test {

using std::chrono::minutes;
using std::chrono::seconds;

const HostFaults::Clock::time_point kNow{std::chrono::hours(1)};

TEST(HostFaults, AfterOneFaultTheOtherJobsMayBegin) {
  HostFaults faults;
  EXPECT_TRUE(faults.may_begin(1, kNow));
  EXPECT_FALSE(faults.note_fault(1, kNow)) << "the first is no try of the job";
  EXPECT_FALSE(faults.may_begin(1, kNow));
  EXPECT_TRUE(faults.may_begin(2, kNow));
  EXPECT_TRUE(faults.may_begin(1, kNow + seconds(30)));
}

TEST(HostFaults, AfterTwoInARowAllWaitLongerEachTime) {
  HostFaults faults;
  (void)faults.note_fault(1, kNow);
  EXPECT_FALSE(faults.note_fault(2, kNow));
  EXPECT_FALSE(faults.may_begin(3, kNow + seconds(59)));
  EXPECT_TRUE(faults.may_begin(3, kNow + seconds(60)));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(faults.note_fault(1, kNow));
  EXPECT_FALSE(faults.may_begin(3, kNow + minutes(9)));
  EXPECT_TRUE(faults.may_begin(3, kNow + minutes(10)));
}

TEST(HostFaults, CountAsTriesOfAJobBesideWhichOthersRun) {
  HostFaults faults;
  EXPECT_FALSE(faults.note_fault(1, kNow));
  faults.note_end(2);
  EXPECT_TRUE(faults.may_begin(1, kNow)) << "the host is well";
  EXPECT_TRUE(faults.note_fault(1, kNow)) << "so it is the job";
  EXPECT_FALSE(faults.note_fault(1, kNow)) << "no other has run since";
  faults.note_end(1);
  EXPECT_FALSE(faults.note_fault(1, kNow));
}

}  // namespace host_faults_test
}  // namespace lockstep::job_server
