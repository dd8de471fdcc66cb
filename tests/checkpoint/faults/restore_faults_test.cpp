// After a failed read in a restore, each variable has its old or its saved value, never a mixture.
#include <functional>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "dist/communicator.h"
#include "tests/checkpoint/faults/file_calls.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/checkpoint/world_state.h"

namespace lockstep::checkpoint {
namespace restore_faults_test {

using ::testing::HasSubstr;
using tests::Strike;
using tests::StruckCall;
using tests::TemporaryFolder;
using tests::WorldState;

/// One of every kind of state, and tensors that take several reads: contiguous, strided, of which
/// only some elements are wanted.
struct Variables {
  static constexpr int64_t kLarge = 9 << 16;  // float32: 2.25 MiB, three reads

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
  /// State as one of several ranks restores it.
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

/// Variables that a restore is tried on again and again.
class Target {
 public:
  const StateList& state() const { return state_; }

  void reset() {
    for (size_t i = 0; i < state_.size(); ++i)
      if (state_[i].text != nullptr)
        *state_[i].text = *before_[i].text;
      else
        state_[i].tensor.copy_(before_[i].tensor);
  }
  /// Asserts that each variable is wholly old or wholly new, the latter if `restored`.
  void check(bool restored) const {
    for (size_t i = 0; i < state_.size(); ++i) {
      const std::string kind = kind_of(state_[i], before_[i], saved_[i]);
      EXPECT_NE(kind, "mixed") << state_[i].key;
      if (restored) {
        EXPECT_EQ(kind, "new") << state_[i].key;
      }
    }
  }

 private:
  Variables live_{2}, old_ones_{2}, new_ones_{1};
  StateList state_ = live_.wanted(), before_ = old_ones_.list(), saved_ = new_ones_.list();
};

/// True if the restore failed with an error that a failed read may cause.
bool fails_to_restore(const std::string& prefix, const StateList& state, int num_threads) {
  try {
    restore(prefix, state, num_threads);
    return false;
  } catch (const Error& fault) {
    EXPECT_TRUE(fault.code() == ExitCode::kIo || fault.code() == ExitCode::kBadData)
        << fault.what();
    return true;
  }
}

/// Restores once for each read with `call`, which is struck, until a restore has fewer; gives their
/// number. `must_fail`: no restore may take what it got.
int strike_each_read(const std::string& call, const std::string& path, Strike what, bool must_fail,
                     const std::string& prefix, int num_threads) {
  constexpr int kMost = 10'000;
  Target target;
  for (int nth = 1; nth < kMost; ++nth) {
    SCOPED_TRACE(call + " " + std::to_string(nth));
    target.reset();
    const StruckCall strike(call, path, nth, what);
    const bool failed = fails_to_restore(prefix, target.state(), num_threads);
    EXPECT_EQ(failed, strike.was_reached() && must_fail);
    target.check(!failed);
    if (!strike.was_reached()) return nth - 1;
  }
  return kMost;
}

constexpr std::pair<Strike, bool> kReadStrikes[] = {
    {Strike::kIoError, true}, {Strike::kEnd, true}, {Strike::kFlip, true}, {Strike::kShort, false}};

TEST(RestoreFaults, AnyOneReadThatFailsLeavesEachVariableWhollyOldOrWhollyNew) {
  at::set_num_threads(1);  // the tensors are small, and many tests run at once
  const TemporaryFolder folder;
  save(folder.prefix(), 1);
  // A kernel that does not tell of faults in mapped pages: values are read, as the index is.
  const StruckCall old_kernel("madvise", "", 0, Strike::kInvalid);
  for (const int num_threads : {1, 2})
    for (const auto& [what, must_fail] : kReadStrikes) {
      const int num_reads = strike_each_read("pread", folder.path(), what, must_fail,
                                             folder.prefix() + "-1", num_threads);
      EXPECT_GT(num_reads, 10) << "of the index, and of each tensor";
      EXPECT_LT(num_reads, 1000);
    }
}

TEST(RestoreFaults, AnyOnePageOfAMappedShardThatFailsDoesSoToo) {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  save(folder.prefix(), 1);
  const std::string prefix = folder.prefix() + "-1";
  for (const int num_threads : {1, 2}) {
    EXPECT_GT(strike_each_read("madvise", "", Strike::kBrokenDisk, true, prefix, num_threads), 10);
    // It fails once, and not when it is asked again.
    EXPECT_GT(strike_each_read("madvise", "", Strike::kIoError, false, prefix, num_threads), 10);
    for (const auto& [what, must_fail] : kReadStrikes)
      EXPECT_GE(strike_each_read("pread", ".index", what, must_fail, prefix, num_threads), 1);
  }
}

TEST(RestoreFaults, AFlippedBitOfAnyTensorLeavesAllVariablesWhole) {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  save(folder.prefix(), 1);
  const std::string prefix = folder.prefix() + "-1";
  const BundleIndex index = BundleReader(prefix).index();
  Target target;
  int num_failed = 0;
  const auto try_place = [&](const BundlePlace& place) {
    if (place.num_bytes == 0) return;
    const std::string path = shard_path(prefix, place.shard, index.num_shards);
    const std::string sound = tests::bytes_of(path);
    std::string damaged = sound;
    damaged[static_cast<size_t>(place.offset + place.num_bytes - 1)] ^= 16;
    target.reset();
    tests::put_bytes(path, damaged);
    const bool failed = fails_to_restore(prefix, target.state(), 2);
    target.check(!failed);  // else nothing of the place is wanted
    tests::put_bytes(path, sound);
    num_failed += failed ? 1 : 0;
  };
  for (const auto& [name, entry] : index.entries) {
    if (!entry.is_sliced()) try_place(entry);
    for (const BundleSlice& slice : entry.slices) try_place(slice);
  }
  EXPECT_GT(num_failed, 10);
  EXPECT_FALSE(fails_to_restore(prefix, target.state(), 2));
  target.check(true);
}

TEST(RestoreFaults, TheSameOfACheckpointObject) {
  const TemporaryFolder folder;
  {
    Variables saved(1);
    Checkpoint({{"large", saved.large}, {"strided", saved.strided}}).save(folder.prefix());
  }
  const Variables old_ones(2), new_ones(1);
  const StruckCall old_kernel("madvise", "", 0, Strike::kInvalid);
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

/// Restores in a process that is killed at each read with `call` in turn; gives their number.
int kill_at_each_read(const std::string& call, const std::string& path,
                      const TemporaryFolder& folder) {
  dist::SelfCommunicator control;
  Variables live(2), saved(1);
  for (int nth = 1; nth < 1000; ++nth) {
    const pid_t child = ::fork();
    if (child == 0) {
      const StruckCall strike(call, path, nth, Strike::kKill);
      restore(folder.prefix() + "-1", live.list(), /*num_threads=*/1);
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    live.large.zero_();
    live.small.weight.zero_();
    const auto report = restore_latest(folder.path(), "model.ckpt", live.list(), control);
    EXPECT_TRUE(report && report->number == 1);
    EXPECT_TRUE(live.small == saved.small && at::equal(live.large, saved.large));
    if (WIFEXITED(status)) return nth - 1;
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
  }
  return 1000;
}

TEST(RestoreFaults, AProcessKilledAtAnyReadRestoresTheSameSaveAtItsNextStart) {
  const TemporaryFolder folder;
  save(folder.prefix(), 1);
  at::set_num_threads(1);  // a child has no thread but its own
  EXPECT_GT(kill_at_each_read("madvise", "", folder), 10);
  const StruckCall old_kernel("madvise", "", 0, Strike::kInvalid);
  EXPECT_GT(kill_at_each_read("pread", folder.path(), folder), 10);
}

/// Error of restore_latest on two ranks while a file call fails; checkpoints 1 and 2 exist.
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
                  HasSubstr(std::string(file) + ": cannot be read (Permission denied)"));
      EXPECT_THAT(fault_while(StruckCall("open", file, nth, Strike::kIoError), folder),
                  HasSubstr("Input/output error"));
    }
  EXPECT_EQ(fault_while(StruckCall("open", "no such file", 1, Strike::kIoError), folder), "");
}

}  // namespace restore_faults_test
}  // namespace lockstep::checkpoint
