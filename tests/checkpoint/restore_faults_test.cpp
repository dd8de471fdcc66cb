// Whatever becomes of one read of a restore, each variable holds what it held before, or what was
// saved, and never a part of each.
#include <functional>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/restore.h"
#include "dist/self_communicator.h"
#include "tests/checkpoint/file_calls.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/checkpoint/world_state.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using tests::Strike;
using tests::StruckCall;
using tests::TemporaryFolder;
using tests::WorldState;

/// One of every kind of state, and tensors that take several reads: contiguous, strided, of which
/// only some elements are wanted.
struct Variables {
  static constexpr int64_t kLarge = 9 << 14;  // float32: 576 KiB, three reads

  explicit Variables(int64_t seed)
      : small(seed, 0, 1),
        large(at::arange(kLarge, at::kFloat).reshape({-1, 64}) + seed),
        strided((at::arange(kLarge, at::kFloat) - seed).reshape({-1, 256}).t()),
        part(at::arange(kLarge, at::kFloat) * 2 + seed) {}

  StateList list() {
    StateList all = small.list(/*sparse=*/true);
    all.push_back({.key = "model/large", .tensor = large});
    all.push_back({.key = "model/strided", .tensor = strided});
    all.push_back({.key = "model/part", .tensor = part});
    return all;
  }
  /// As one of several ranks restores it.
  StateList wanted() {
    StateList all = list();
    for (StateEntry& entry : all)
      if (entry.key == "model/part") entry.held = {{5, 30'000}, {70'000, 70'001}, {90'000, kLarge}};
    return all;
  }

  WorldState small;
  at::Tensor large, strided, part;
};

void save(const std::string& prefix, int64_t seed) {
  lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
    Variables variables(seed);
    StateList list = variables.list();
    for (StateEntry& entry : list)
      if (entry.held) entry.held.reset();  // every rank holds all: the plan cuts them
    ASSERT_TRUE(Saver({.prefix = prefix, .sparse = true, .min_cut_bytes = 1 << 16}, control)
                    .save(list, seed)
                    .ok);
  });
}

/// "new", "old", or what is neither.
std::string kind_of(const StateEntry& live, const StateEntry& old_one, const StateEntry& new_one) {
  if (live.text != nullptr)
    return *live.text == *new_one.text ? "new" : *live.text == *old_one.text ? "old" : "mixed";
  at::Tensor expected = new_one.tensor;
  if (live.held) {
    expected = old_one.tensor.clone();
    for (const ElementRange& range : *live.held)
      expected.view(-1)
          .slice(0, range.begin_E, range.end_E)
          .copy_(new_one.tensor.view(-1).slice(0, range.begin_E, range.end_E));
  }
  if (at::equal(live.tensor, expected)) return "new";
  return at::equal(live.tensor, old_one.tensor) ? "old" : "mixed";
}

/// Restores once for each read, which is struck, until a restore has fewer; gives their number.
/// `must_fail`: no restore may take what it got.
int strike_each_read(const std::string& folder, Strike what, bool must_fail,
                     const std::function<void(const StateList&)>& restore) {
  constexpr int kMost = 10'000;
  Variables live(2), old_ones(2), new_ones(1);
  const StateList state = live.wanted(), before = old_ones.list(), saved = new_ones.list();
  for (int nth = 1; nth < kMost; ++nth) {
    for (size_t i = 0; i < state.size(); ++i)
      if (state[i].text != nullptr)
        *state[i].text = *before[i].text;
      else
        state[i].tensor.copy_(before[i].tensor);
    bool failed = false, reached = false;
    {
      const StruckCall strike("pread", folder, nth, what);
      try {
        restore(state);
      } catch (const Error& fault) {
        failed = true;
        EXPECT_TRUE(fault.code() == ExitCode::kIo || fault.code() == ExitCode::kBadData)
            << fault.what();
      }
      reached = strike.was_reached();
    }
    EXPECT_EQ(failed, reached && must_fail) << "read " << nth;
    for (size_t i = 0; i < state.size(); ++i) {
      const std::string kind = kind_of(state[i], before[i], saved[i]);
      EXPECT_NE(kind, "mixed") << state[i].key << " after read " << nth;
      if (!failed) {
        EXPECT_EQ(kind, "new") << state[i].key << " after read " << nth;
      }
    }
    if (!reached) return nth - 1;
  }
  return kMost;
}

TEST(RestoreFaults, AnyOneReadThatFailsLeavesEachVariableWhollyOldOrWhollyNew) {
  at::set_num_threads(1);  // the tensors are small, and many tests run at once
  const TemporaryFolder folder;
  save(folder.prefix(), 1);
  for (const int num_threads : {1, 2})
    for (const auto& [what, must_fail] : {std::pair(Strike::kIoError, true),
                                          {Strike::kEnd, true},
                                          {Strike::kFlip, true},
                                          {Strike::kShort, false}}) {
      const int num_reads = strike_each_read(
          folder.path(), what, must_fail,
          [&](const StateList& state) { restore(folder.prefix() + "-1", state, num_threads); });
      EXPECT_GT(num_reads, 20) << "of the index, and of each tensor";
      EXPECT_LT(num_reads, 1000);
    }
}

TEST(RestoreFaults, TheSameOfACheckpointObject) {
  const TemporaryFolder folder;
  {
    Variables saved(1);
    Checkpoint({{"large", saved.large}, {"strided", saved.strided}}).save(folder.prefix());
  }
  const Variables old_ones(2), new_ones(1);
  for (const bool strictly : {false, true})
    for (int nth = 1; nth < 100; ++nth) {
      Variables live(2);
      Checkpoint checkpoint({{"large", live.large}, {"strided", live.strided}});
      bool failed = false;
      {
        const StruckCall strike("pread", folder.path(), nth, Strike::kFlip);
        try {
          if (strictly)
            checkpoint.load_weights_now(folder.prefix() + "-1");
          else
            checkpoint.restore(folder.prefix() + "-1").assert_consumed();
        } catch (const Error&) {
          failed = true;
        }
        EXPECT_EQ(failed, strike.was_reached());
      }
      for (const auto& [tensor, before, saved] :
           {std::tuple(live.large, old_ones.large, new_ones.large),
            {live.strided, old_ones.strided, new_ones.strided}})
        EXPECT_TRUE(at::equal(tensor, saved) || (failed && at::equal(tensor, before)))
            << "read " << nth;
      if (!failed) {
        EXPECT_GT(nth, 7);
        break;
      }
      EXPECT_NO_THROW(checkpoint.save(folder / "other")) << "no restore is under way";
    }
}

TEST(RestoreFaults, AProcessKilledAtAnyReadRestoresTheSameSaveAtItsNextStart) {
  const TemporaryFolder folder;
  save(folder.prefix(), 1);
  dist::SelfCommunicator control;
  at::set_num_threads(1);  // a child has no thread but its own
  Variables live(2), saved(1);
  for (int nth = 1; nth < 1000; ++nth) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const StruckCall strike("pread", folder.path(), nth, Strike::kKill);
      restore(folder.prefix() + "-1", live.list(), /*num_threads=*/1);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    live.large.zero_();
    live.small.weight.zero_();
    const auto report = restore_latest(folder.path(), "model.ckpt", live.list(), control);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->number, 1);
    EXPECT_TRUE(live.small == saved.small && at::equal(live.large, saved.large));
    if (WIFEXITED(status)) {
      EXPECT_GT(nth, 15);
      return;
    }
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
  }
  FAIL() << "the restore never ended";
}

/// What restore_latest on two ranks ends with while a call of a file fails; saves 1 and 2 are
/// there.
std::string fault_while(const StruckCall&, const TemporaryFolder& folder) {
  try {
    lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
      tests::SmallState state(99);
      (void)restore_latest(folder.path(), "model.ckpt", state.list(), control);
      EXPECT_TRUE(state == tests::SmallState(2)) << "passed over";
    });
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kIo) << fault.what();
    EXPECT_TRUE(fault.on_every_rank());
    return fault.what();
  }
  return "";
}

TEST(RestoreFaults, ASaveThatCannotBeReadForAnotherReasonThanDamageIsNotPassedOver) {
  const TemporaryFolder folder;
  for (const int64_t number : {1, 2}) tests::save_small({.prefix = folder.prefix()}, number, 2);
  for (const char* file : {"model.ckpt-2.index", "model.ckpt-2.data-00001-of-00002"})
    for (const int nth : {1, 2}) {  // on one host: the other rank's call passes
      EXPECT_THAT(fault_while(StruckCall("open", file, nth, Strike::kNoPermission), folder),
                  HasSubstr(std::string(file) + ": may not be read (Permission denied)"));
      EXPECT_THAT(fault_while(StruckCall("open", file, nth, Strike::kIoError), folder),
                  HasSubstr("Input/output error"));
    }
  EXPECT_EQ(fault_while(StruckCall("open", "no such file", 1, Strike::kIoError), folder), "");
}

}  // namespace
}  // namespace lockstep::checkpoint
