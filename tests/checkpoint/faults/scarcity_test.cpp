// Saves and restores without further threads or memory.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/restore.h"
#include "dist/communicator.h"
#include "tests/checkpoint/faults/file_calls.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace scarcity_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::Strike;
using tests::StruckCall;
using tests::TemporaryFolder;

/// Large enough for two writing threads; several calls to write.
StateList large_state() {
  return {{.key = "model/weight", .tensor = at::arange(5 << 20, at::kFloat)}};
}

TEST(Scarcity, ASaveIsMadeWithTheThreadsThatCanBeStarted) {
  dist::SelfCommunicator alone;
  const StateList state = large_state();
  bool was_reached = true;
  for (int nth = 0; was_reached; ++nth) {  // 0: none can
    const TemporaryFolder folder;
    Saver saver({.prefix = folder.prefix()}, alone);
    SaveResult result;
    {
      const StruckCall strike("pthread_create", "", nth, Strike::kIoError);
      saver.prepare(state);
      saver.begin(state, 1);
      saver.wait_until_staged();
      result = saver.wait();
      was_reached = strike.was_reached();
      ASSERT_LT(nth, 20);
    }
    EXPECT_TRUE(result.ok) << result.error;
    EXPECT_THAT(verify(folder.prefix() + "-1"), IsEmpty());
    if (!was_reached) {
      EXPECT_GT(nth, 4) << "prepare, the saver's, two that write";
    }
  }
}

TEST(Scarcity, ARestoreIsMadeWithTheThreadsThatCanBeStarted) {
  dist::SelfCommunicator alone;
  const TemporaryFolder folder;
  Saver({.prefix = folder.prefix()}, alone).save(large_state(), 1);
  const at::Tensor found = at::zeros({5 << 20});
  {
    const StruckCall strike("pthread_create", "", 0, Strike::kIoError);
    restore(folder.prefix() + "-1", {{"model/weight", found}}, /*num_threads=*/4);
    EXPECT_TRUE(strike.was_reached());
  }
  EXPECT_TRUE(at::equal(found, large_state()[0].tensor));
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // which end the program instead
TEST(Scarcity, NoMemoryForATensorIsTheMachinesFaultAndNoBug) {
  const auto fault = fault_of([] { (void)at::empty({int64_t{1} << 50}); });
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code(), ExitCode::kIo);
  EXPECT_THAT(fault->what(), HasSubstr("out of memory: "));
}
#endif

TEST(Scarcity, OtherErrorsOfLibTorchAreBugs) {
  const auto fault = fault_of([] { (void)(at::zeros({2}) + at::zeros({3})); });
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code(), ExitCode::kBug);
}

}  // namespace scarcity_test
}  // namespace lockstep::checkpoint
