// Each part of a step hears of its begin and its end, on every way in which a step can end.
#include <atomic>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "train/run.h"
#include "train/small_run.h"

namespace lockstep::train {
namespace step_parts_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tests::SmallRun;
using tests::SmallRunOptions;
using Calls = std::vector<std::string>;

/// Part that records its calls.
class Recorded final : public StepPart {
 public:
  void on_recipe_change(const recal::AppliedActions&) override { calls_.push_back("change"); }
  void begin_step() override { calls_.push_back("begin"); }
  void end_step(StepEnd end, int64_t) override {
    calls_.push_back(end == StepEnd::kUpdated   ? "updated"
                     : end == StepEnd::kSkipped ? "skipped"
                                                : "left out");
  }
  Calls take() { return std::exchange(calls_, {}); }

 private:
  Calls calls_;
};

SmallRunOptions options_with(Recorded* part) {
  SmallRunOptions options;
  options.more_parts = {part};
  return options;
}

void spoil(SmallRun* run) { run->model->params()[1].tensor.detach()[0].fill_(std::nan("")); }

TEST(StepParts, AnUpdateEndsAsUpdated) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Recorded part;
    SmallRun run(comm, options_with(&part));
    for (int step = 0; step < 2; ++step) {
      EXPECT_FALSE(run.step().skipped);
      EXPECT_THAT(part.take(), ElementsAre("change", "begin", "updated"));
    }
    (void)run.trainer.close();
    EXPECT_THAT(part.take(), ElementsAre("change"));
  });
}

TEST(StepParts, AnUpdateThatIsNotFiniteEndsAsSkippedOnAllRanks) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Recorded part;
    SmallRun run(comm, options_with(&part));
    if (comm.rank() == 1) spoil(&run);
    EXPECT_TRUE(run.step().skipped);
    EXPECT_THAT(part.take(), ElementsAre("change", "begin", "skipped"));
  });
}

TEST(StepParts, LocalStepsEndBeforeTheAverageAndEachRankAsItsOwn) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Recorded part;
    SmallRunOptions options = options_with(&part);
    options.num_samples = 400;
    options.sync.sync_replicas = false;
    options.sync.sync_every = 2;
    SmallRun run(comm, options);
    for (const bool is_average : {false, true}) {
      EXPECT_EQ(run.step().ranks_agree, is_average);
      EXPECT_THAT(part.take(), ElementsAre("change", "begin", "updated"));
    }
    if (comm.rank() == 1) spoil(&run);
    EXPECT_EQ(run.step().skipped, comm.rank() == 1);
    EXPECT_THAT(part.take(),
                ElementsAre("change", "begin", comm.rank() == 1 ? "skipped" : "updated"));
  });
}

/// Random numbers of which only the first batches arrive.
class LateData final : public data::Dataset {
 public:
  int64_t num_samples() const override { return numbers_.num_samples(); }
  data::SampleSpec spec() const override { return numbers_.spec(); }
  std::string digest() const override { return numbers_.digest(); }
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    const int batch = num_batches_++;
    for (int now = num_arrived_; now <= batch; now = num_arrived_) num_arrived_.wait(now);
    return numbers_.get(indices_B, epoch);
  }
  void let_arrive(int num_batches) {
    num_arrived_ = num_batches;
    num_arrived_.notify_all();
  }

 private:
  const data::RandomDataset numbers_{{3}, 4, 40, 1};
  mutable std::atomic<int> num_batches_{0};
  std::atomic<int> num_arrived_{0};
};

class Told final : public StopRequest {
 public:
  void set_stop_signals(const std::vector<int>&) override {}
  bool stop_asked() const override { return stop; }
  bool end_asked() const override { return false; }
  int64_t num_saves_asked() const override { return 0; }
  int64_t num_received(int) const override { return 0; }

  std::atomic<bool> stop{true};
};

TEST(StepParts, AStepWithoutItsDataEndsAsLeftOutOnceItHasBegun) {
  dist::SelfCommunicator alone;
  Recorded part;
  LateData data;
  Told told;
  SmallRunOptions options = options_with(&part);
  options.data = &data;
  options.loader = {.num_threads = 1, .prefetch_batches = 1};
  options.stop = &told;
  SmallRun run(alone, options);
  // The first step asks for stops before its recipe, and does not begin.
  EXPECT_TRUE(run.step().is_left_out);
  EXPECT_THAT(part.take(), IsEmpty());
  told.stop = false;
  data.let_arrive(1);
  EXPECT_FALSE(run.step().is_left_out);
  EXPECT_THAT(part.take(), ElementsAre("change", "begin", "updated"));
  told.stop = true;
  EXPECT_TRUE(run.step().is_left_out);
  EXPECT_THAT(part.take(), ElementsAre("change", "begin", "left out"));
  told.stop = false;
  data.let_arrive(1000);
  EXPECT_FALSE(run.step().is_left_out);
  EXPECT_THAT(part.take(), ElementsAre("change", "begin", "updated"));
}

TEST(Agenda, AnItemIsOwedUntilItFallsDue) {
  Agenda agenda;
  EXPECT_FALSE(agenda.fall_due(Agenda::kSave));
  agenda.owe(Agenda::kSave);
  agenda.owe(Agenda::kSave, /*is_requested=*/false);  // another request does not end the first
  EXPECT_FALSE(agenda.fall_due(Agenda::kSave, /*is_possible=*/false));
  EXPECT_TRUE(agenda.owes(Agenda::kSave));
  EXPECT_TRUE(agenda.fall_due(Agenda::kSave));
  EXPECT_TRUE(agenda.is_due(Agenda::kSave));
  EXPECT_FALSE(agenda.owes(Agenda::kSave));
  EXPECT_FALSE(agenda.fall_due(Agenda::kSave));
  EXPECT_FALSE(agenda.is_due(Agenda::kSave));
}

}  // namespace step_parts_test
}  // namespace lockstep::train
