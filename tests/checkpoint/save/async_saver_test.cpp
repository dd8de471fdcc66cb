// Saves during training: the saved state is that at begin(), unaffected by later changes.
#include <atomic>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/checkpoint/world_state.h"
#include "tests/dist/spy_communicator.h"

namespace lockstep::checkpoint {
namespace async_saver_test {

using lockstep::tests::run_ranks;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::TemporaryFolder;
using tests::WorldState;

std::vector<std::string> names_in(const TemporaryFolder& folder, const std::string& part) {
  std::vector<std::string> names;
  for (const std::string& name : files::list(folder.path()))
    if (name.find(part) != std::string::npos) names.push_back(name);
  return names;
}

/// Each rank finds in the save what a state of `seed` holds in such a world.
void expect_restored(const std::string& prefix, int64_t seed, int world_size, bool sparse) {
  run_ranks(world_size, [&](dist::Communicator& control) {
    WorldState restored(seed + 50, control.rank(), world_size);
    // what is not held must stay as it is, and what is held is overwritten
    restore_on_all(prefix, restored.list(sparse), control);
    EXPECT_TRUE(restored == WorldState(seed, control.rank(), world_size))
        << "rank " << control.rank() << " of " << world_size;
  });
}

struct Form {
  int world_size;
  bool sparse;
};

class AsyncSaver : public ::testing::TestWithParam<Form> {
 protected:
  SaverOptions options(SavePhaseHook at_phase = {}) const {
    return {.prefix = folder_.prefix(),
            .sparse = GetParam().sparse,
            .compare_replicas = true,
            .min_cut_bytes = 0,
            .at_phase = std::move(at_phase)};
  }
  TemporaryFolder folder_;
};

TEST_P(AsyncSaver, HoldsTheStateAtBeginWhateverChangesAfterwards) {
  const auto [world_size, sparse] = GetParam();
  // bytes are still copied when begin() returns, and still written when the state changes
  const auto slowly = [](SavePhase phase) {
    if (phase <= SavePhase::kShardWritten)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  run_ranks(world_size, [&](dist::Communicator& comm) {
    WorldState state(3, comm.rank(), world_size);
    Saver saver(options(slowly), comm);
    for (const int64_t step : {3, 4, 5}) {  // kept memory is used again
      saver.begin(state.list(sparse), step);
      state.change_the_rest();
      saver.wait_until_staged();
      state.change_what_is_steady();
      const SaveResult result = saver.wait();
      EXPECT_TRUE(result.ok) << result.error;
      EXPECT_EQ(result.number, step);
      state = WorldState(step + 1, comm.rank(), world_size);
    }
  });
  for (const int64_t step : {3, 4, 5}) {
    const std::string prefix = folder_.prefix() + "-" + std::to_string(step);
    EXPECT_THAT(verify(prefix), IsEmpty());
    for (const int other_size : {1, 2, 3, 4}) expect_restored(prefix, step, other_size, sparse);
  }
}

TEST_P(AsyncSaver, SavesTheSameBytesBesideTrainingAsAlone) {
  const auto [world_size, sparse] = GetParam();
  TemporaryFolder alone;
  run_ranks(world_size, [&](dist::Communicator& comm) {
    WorldState state(3, comm.rank(), world_size);
    SaverOptions elsewhere = options();
    elsewhere.prefix = alone.prefix();
    EXPECT_TRUE(Saver(elsewhere, comm).save(state.list(sparse), 3).ok);
    Saver saver(options(), comm);
    saver.begin(state.list(sparse), 3);
    state.change_the_rest();
    saver.wait_until_staged();
    state.change_what_is_steady();
    EXPECT_TRUE(saver.wait().ok);
  });
  EXPECT_EQ(files::list(folder_.path()), files::list(alone.path()));
  for (const std::string& name : files::list(alone.path()))
    EXPECT_EQ(tests::bytes_of(folder_ / name), tests::bytes_of(alone / name)) << name;
}

/// A state of several chunks of staging memory on each rank, of odd sizes.
struct LargeState {
  explicit LargeState(int64_t seed) {
    auto* bits = mask_bits.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < num_mask_bytes(kNum); ++i) bits[i] = static_cast<uint8_t>(i * 37 >> 3);
    dense.add_(static_cast<float>(seed));
    zero_pruned(pruned.add_(static_cast<float>(seed)).mutable_data_ptr(), bits, kNum, 4);
    text.back() = static_cast<char>('a' + seed);
  }
  StateList list(bool sparse) {
    StateEntry weight{.key = "model/pruned", .tensor = pruned};
    if (sparse) {
      weight.kept_bits = mask_bits;
      weight.kept_key = "mask";
    }
    return {{.key = "model/dense", .tensor = dense},
            std::move(weight),
            {.key = "mask", .tensor = mask_bits},
            {.key = "note", .tensor = {}, .text = &text}};
  }
  bool operator==(const LargeState& other) const {
    return at::equal(dense, other.dense) && at::equal(pruned, other.pruned) && text == other.text;
  }

  static constexpr int64_t kNum = (int64_t{4} << 20) + 13;
  at::Tensor dense = at::arange(kNum + 30'001, at::kFloat);
  at::Tensor pruned = at::arange(kNum, at::kFloat) + 1;
  at::Tensor mask_bits = at::zeros({num_mask_bytes(kNum)}, at::kByte);
  std::string text = std::string((size_t{5} << 20) + 7, 'x');
};

TEST_P(AsyncSaver, LargeTensorsMayChangeOnceBeginHasReturned) {
  const bool sparse = GetParam().sparse;
  run_ranks(GetParam().world_size, [&](dist::Communicator& comm) {
    Saver saver(options(), comm);
    for (const int64_t step : {3, 4}) {  // kept memory is used again
      LargeState state(step);
      saver.begin(state.list(sparse), step);
      for (const at::Tensor& tensor : {state.dense, state.pruned, state.mask_bits}) tensor.fill_(1);
      state.text.clear();
      EXPECT_TRUE(saver.wait().ok);
    }
  });
  run_ranks(1, [&](dist::Communicator& comm) {
    for (const int64_t step : {3, 4}) {
      const std::string prefix = folder_.prefix() + "-" + std::to_string(step);
      EXPECT_THAT(verify(prefix), IsEmpty());
      LargeState restored(step + 2);
      (void)restore_on_all(prefix, restored.list(sparse), comm);
      EXPECT_TRUE(restored == LargeState(step)) << step;
    }
  });
}

TEST_P(AsyncSaver, TheStateMayChangeLongBeforeTheSaveIsWritten) {
  const auto [world_size, sparse] = GetParam();
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  std::atomic<int> num_staged = 0;
  const int num_ranks = world_size;
  run_ranks(world_size, [&, sparse = sparse](dist::Communicator& comm) {
    Saver saver(options([&](SavePhase phase) {
                  if (phase == SavePhase::kShardWritten) open.wait();
                }),
                comm);
    WorldState state(3, comm.rank(), num_ranks);
    saver.begin(state.list(sparse), 3);
    EXPECT_TRUE(saver.is_under_way());
    saver.wait_until_staged();
    saver.wait_until_staged();  // as often as one likes
    EXPECT_FALSE(saver.is_done());
    EXPECT_THAT(names_in(folder_, "index"), IsEmpty());
    if (++num_staged == num_ranks) gate.set_value();
    EXPECT_TRUE(saver.wait().ok);
    EXPECT_FALSE(saver.is_under_way());
    EXPECT_TRUE(saver.is_done());
  });
}

TEST_P(AsyncSaver, OneSaveAtATime) {
  const auto [world_size, sparse] = GetParam();
  const int num_ranks = world_size;
  run_ranks(world_size, [&, sparse = sparse](dist::Communicator& comm) {
    Saver saver(options(), comm);
    EXPECT_THROW(saver.wait(), Error);
    WorldState state(3, comm.rank(), num_ranks);
    saver.begin(state.list(sparse), 3);
    EXPECT_THROW(saver.begin(state.list(sparse), 4), Error);
    EXPECT_THROW(saver.save(state.list(sparse), 4), Error);
    EXPECT_EQ(saver.number(), 3);
    const SaveResult result = saver.wait();
    EXPECT_TRUE(result.ok) << result.error;
    EXPECT_EQ(result.number, 3);
    EXPECT_THROW(saver.wait(), Error);
  });
  expect_restored(folder_.prefix() + "-3", 3, 1, sparse);
  EXPECT_THAT(names_in(folder_, "-4"), IsEmpty());
}

TEST_P(AsyncSaver, ItsEndIsTheEndOfTheSaveUnderWay) {
  const auto [world_size, sparse] = GetParam();
  const int num_ranks = world_size;
  run_ranks(world_size, [&, sparse = sparse](dist::Communicator& comm) {
    WorldState state(3, comm.rank(), num_ranks);
    {
      Saver saver(options(), comm);
      saver.begin(state.list(sparse), 3);
    }
    EXPECT_THAT(names_in(folder_, "index"), ::testing::ElementsAre("model.ckpt-3.index"));
  });
  EXPECT_THAT(names_in(folder_, ".tmp"), IsEmpty());
  expect_restored(folder_.prefix() + "-3", 3, 2, sparse);
}

/// wait() reports a disk error of one rank during training to all ranks, not before.
TEST_P(AsyncSaver, AFaultOfOneRankIsToldByWaitAndTheNextSaveWorks) {
  const auto [world_size, sparse] = GetParam();
  const int num_ranks = world_size;
  for (const SavePhase bad_phase :
       {SavePhase::kStaged, SavePhase::kShardWritten, SavePhase::kShardRenamed}) {
    run_ranks(world_size, [&, sparse = sparse](dist::Communicator& comm) {
      bool is_bad = comm.rank() == num_ranks - 1;
      Saver saver(options([&](SavePhase phase) {
                    if (phase == bad_phase && is_bad)
                      throw Error(ExitCode::kIo, "files", "no space left");
                  }),
                  comm);
      WorldState state(3, comm.rank(), num_ranks);
      saver.begin(state.list(sparse), 3);
      saver.wait_until_staged();
      const SaveResult result = saver.wait();
      EXPECT_FALSE(result.ok);
      EXPECT_THAT(result.error, HasSubstr("no space left"));
      comm.barrier();  // each rank removes its own files
      EXPECT_THAT(names_in(folder_, "-3."), IsEmpty());
      is_bad = false;
      saver.begin(state.list(sparse), 4);
      state.change_the_rest();
      EXPECT_TRUE(saver.wait().ok);
    });
    expect_restored(folder_.prefix() + "-4", 3, 2, sparse);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, AsyncSaver,
                         ::testing::Values(Form{1, false}, Form{2, false}, Form{3, false},
                                           Form{1, true}, Form{2, true}, Form{3, true}),
                         [](const auto& form) {
                           return (form.param.sparse ? "Sparse" : "Dense") +
                                  std::to_string(form.param.world_size);
                         });

/// The replicas are compared while the state may not change; what differs is never committed.
TEST(AsyncSaverReplicas, StatesThatHavePartedEndTheSaveOnEveryRank) {
  for (const int odd_rank : {0, 1, 2}) {
    TemporaryFolder folder;
    run_ranks(3, [&](dist::Communicator& comm) {
      WorldState state(3, comm.rank(), 3);
      if (comm.rank() == odd_rank) state.weight.view(-1)[1234].add_(1e-3);
      Saver saver({.prefix = folder.prefix(), .compare_replicas = true, .min_cut_bytes = 0}, comm);
      saver.begin(state.list(), 3);
      saver.wait_until_staged();  // does not wait for ever
      try {
        saver.wait();
        ADD_FAILURE() << "rank " << comm.rank() << " takes it for a save";
      } catch (const Error& fault) {
        EXPECT_EQ(fault.code(), ExitCode::kDisagree);
        EXPECT_TRUE(fault.on_every_rank());
        EXPECT_THAT(fault.what(), HasSubstr("model/weight"));
      }
      EXPECT_FALSE(saver.is_under_way());
    });
    EXPECT_THAT(names_in(folder, "index"), IsEmpty());
    EXPECT_THAT(names_in(folder, "checkpoint"), IsEmpty());
  }
}

/// A peer is lost before anything is staged: wait() reports it to callers that wait for the state,
/// and the loop gets the error at once.
TEST(AsyncSaverFaults, ASaveThatEndsBeforeItBeginsLetsTheStateGo) {
  TemporaryFolder folder;
  run_ranks(2, [&](dist::Communicator& control) {
    lockstep::tests::SpyCommunicator comm(control);
    comm.before_gather = [] { throw Error(ExitCode::kUnavailable, "test", "a lost peer"); };
    Saver saver({.prefix = folder.prefix()}, comm);
    std::promise<std::string> told;
    saver.set_on_lost([&](const Error& fault) { told.set_value(fault.what()); });
    WorldState state(3, control.rank(), 2);
    saver.begin(state.list(), 3);
    EXPECT_NO_THROW(saver.wait_until_staged());
    EXPECT_THAT(told.get_future().get(), HasSubstr("a lost peer"));
    try {
      saver.wait();
      ADD_FAILURE() << "it was saved";
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kUnavailable);
    }
    EXPECT_FALSE(saver.is_under_way());
  });
}

/// Files that the index of a failed save names exist as long as the index may exist.
TEST(AsyncSaverFaults, AnIndexThatCannotBeTakenBackKeepsItsShards) {
  TemporaryFolder folder;
  run_ranks(2, [&](dist::Communicator& comm) {
    const auto fail_for_good = [&](SavePhase phase) {
      if (phase != SavePhase::kCommitted) return;
      const std::filesystem::path index = folder / "model.ckpt-3.index";
      std::filesystem::remove(index);
      std::filesystem::create_directory(index);  // so that unlink() fails
      throw Error(ExitCode::kIo, "files", "the disk is gone");
    };
    WorldState state(3, comm.rank(), 2);
    Saver saver({.prefix = folder.prefix(), .at_phase = fail_for_good}, comm);
    EXPECT_FALSE(saver.save(state.list(), 3).ok);
    comm.barrier();
    EXPECT_THAT(names_in(folder, ".data-"), ::testing::SizeIs(2));
    EXPECT_THAT(names_in(folder, ".tmp"), IsEmpty());
  });
}

}  // namespace async_saver_test
}  // namespace lockstep::checkpoint
