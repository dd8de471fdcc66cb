#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "dist/communicator.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_world.h"
#include "tests/train/small_run.h"
#include "train/eval_options.h"
#include "train/evaluator.h"
#include "train/past_evaluations.h"
#include "train/records.h"

namespace lockstep::train {
namespace evaluation_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::NanSensitiveDoubleEq;

TEST(Patience, CountsEvaluationsSinceTheBest) {
  Patience patience("eval.accuracy", 2);
  EXPECT_TRUE(patience.add(0.5));
  EXPECT_FALSE(patience.add(0.5));  // as good is no better
  EXPECT_FALSE(patience.is_exhausted());
  EXPECT_TRUE(patience.add(0.6));
  EXPECT_FALSE(patience.add(NAN));
  EXPECT_FALSE(patience.is_exhausted());
  EXPECT_FALSE(patience.add(0.4));
  EXPECT_TRUE(patience.is_exhausted());
}

TEST(Patience, OfLossesTheLowerIsTheBetterAndZeroNeverEnds) {
  Patience patience("eval.loss", 0);
  EXPECT_TRUE(patience.add(2));
  EXPECT_TRUE(patience.add(1));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(patience.add(3));
  EXPECT_FALSE(patience.is_exhausted());
}

TEST(EvalSamples, AreWholeBatchesOrWhatIsLeft) {
  const EvalOptions options{.batch_size = 100, .eval_freq = 4};
  EXPECT_EQ(num_eval_samples(options, 1000), 400);
  EXPECT_EQ(num_eval_samples(options, 400), 400);
  EXPECT_EQ(num_eval_samples(options, 301), 301);  // four batches, the last of one
  EXPECT_EQ(num_eval_samples({.batch_size = 100}, 7), 7);
  try {
    (void)num_eval_samples(options, 300);
    FAIL() << "three batches are no four";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
  }
  EXPECT_THROW((void)num_eval_samples({}, 0), Error);
}

TEST(ModelHandler, EvaluatesTheAveragesAndBringsBackTheWeights) {
  dist::SelfCommunicator alone;
  tests::SmallRun run(alone, {});
  const at::Tensor weight = run.model->params().at(0).tensor;
  const at::Tensor own = weight.detach().clone();
  optim::Ema ema(0.9, run.model->params());
  (void)ema.begin();
  for (const Param& average : ema.params()) average.tensor.zero_();
  const ModelHandler handler(*run.model, &ema);
  {
    const ModelHandler::EvalPlan plan = handler.eval_plan();
    EXPECT_FALSE(run.model->is_training());
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_EQ(weight.abs().sum().item<double>(), 0);
  }
  EXPECT_TRUE(run.model->is_training());
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_TRUE(at::equal(weight, own));
  const auto with = evaluate(handler, run.loss, run.dataset, {}, alone);
  const auto without = evaluate(ModelHandler(*run.model), run.loss, run.dataset, {}, alone);
  EXPECT_NE(with.loss, without.loss);
}

/// Like a callback that gathers: talks to the other ranks behind each batch.
class GatheringHook final : public Hook {
 public:
  explicit GatheringHook(dist::Communicator& control) : control_(control) {}
  void after_step(const IterationEnd&) override {
    at::Tensor number = at::ones({2}, at::kDouble);
    control_.all_reduce(number, dist::ReduceOp::kSum)->wait();
    ++num_batches_;
  }
  void end() override { has_ended_ = true; }

  int64_t num_batches_ = 0;
  bool has_ended_ = false;

 private:
  dist::Communicator& control_;
};

TEST(Evaluation, WhenOneRankIsToStopAllLeaveItBehindTheSameBatch) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    tests::SmallRun run(comm, {.num_samples = 100});  // shares of 34, 33 and 33
    GatheringHook hook(comm);
    const HookContext context{.model = *run.model};
    Hooks hooks(context);
    hooks.add(hook);
    const EvalLoop loop{.hooks = &hooks,
                        .must_stop = [&] { return comm.rank() == 1 && hook.num_batches_ >= 5; }};
    const EvalResult result =
        evaluate(ModelHandler(*run.model), run.loss, run.dataset, {.batch_size = 3}, comm, loop);
    EXPECT_TRUE(result.is_abandoned);
    EXPECT_EQ(hook.num_batches_, 8);
    EXPECT_TRUE(hook.has_ended_);
  });
}

TEST(Evaluation, SharesOfDifferentLengthAskForTheSameVotes) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    tests::SmallRun run(comm, {.num_samples = 13});  // shares of 5, 4 and 4: one batch more
    const EvalLoop loop{.must_stop = [] { return false; }};
    const EvalResult result =
        evaluate(ModelHandler(*run.model), run.loss, run.dataset, {.batch_size = 1}, comm, loop);
    EXPECT_FALSE(result.is_abandoned);
    EXPECT_EQ(result.num_samples, 13);
  });
}

/// Holds each read until so many threads read at once.
class MeetingDataset final : public data::Dataset {
 public:
  MeetingDataset(const data::Dataset& all, int num_readers)
      : all_(all), num_readers_(num_readers) {}

  int64_t num_samples() const override { return all_.num_samples(); }
  data::SampleSpec spec() const override { return all_.spec(); }
  std::string digest() const override { return all_.digest(); }
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    std::unique_lock lock(mutex_);
    ++num_come_;
    num_read_ += static_cast<int64_t>(indices_B.size());
    come_.notify_all();
    if (!come_.wait_for(lock, std::chrono::minutes(1), [&] { return num_come_ >= num_readers_; }))
      throw std::runtime_error("one batch is read at a time");
    return all_.get(indices_B, epoch);
  }
  int64_t num_read() const {
    const std::scoped_lock lock(mutex_);
    return num_read_;
  }

 private:
  const data::Dataset& all_;
  const int num_readers_;
  mutable std::mutex mutex_;
  mutable std::condition_variable come_;
  mutable int num_come_ = 0;
  mutable int64_t num_read_ = 0;
};

TEST(Evaluation, ThreadsReadBatchesAheadToTheSameResult) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    tests::SmallRun run(comm, {.num_samples = 25});  // shares of 12 and 13
    const EvalOptions options{.batch_size = 3};
    const EvalResult alone =
        evaluate(ModelHandler(*run.model), run.loss, run.dataset, options, comm);
    const MeetingDataset meeting(run.dataset, 3);
    const EvalResult ahead = evaluate(ModelHandler(*run.model), run.loss, meeting, options, comm,
                                      {.loader = {.num_threads = 3, .prefetch_batches = 3}});
    EXPECT_EQ(ahead.loss, alone.loss);
    EXPECT_EQ(ahead.num_samples, 25);
    EXPECT_EQ(meeting.num_read(), comm.rank() == 0 ? 12 : 13);  // and nothing of a second epoch
  });
}

class ReadEvals : public ::testing::Test {
 protected:
  std::vector<double> read(const std::string& lines, const std::string& name) {
    files::write_atomically(path_, "step,name,class,value\n" + lines);
    std::vector<double> values;
    for (const auto& [step, value] : read_evals(path_, name)) values.push_back(value);
    return values;
  }

  tests::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "evals.csv";
};

TEST_F(ReadEvals, GivesTheNumbersOfAllSamplesByName) {
  EXPECT_THAT(read_evals(path_, "loss"), IsEmpty());
  const std::string lines = "10,loss,,0.5\n10,recall,3,0.25\n10,accuracy,,0.75\n20,loss,,nan\n";
  EXPECT_THAT(read(lines, "loss"), ElementsAre(0.5, NanSensitiveDoubleEq(NAN)));
  EXPECT_THAT(read(lines, "accuracy"), ElementsAre(0.75));
  EXPECT_THAT(read(lines, "recall"), IsEmpty());  // of a class
}

TEST_F(ReadEvals, CountsAStepThatWasEvaluatedAgainOnceWithItsLastNumber) {
  EXPECT_THAT(read("2,loss,,0.5\n10,loss,,0.25\n10,loss,,0.125\n", "loss"),
              ElementsAre(0.5, 0.125));
}

/// Past evaluations of a run that resumes from its checkpoint of step 20, with epochs of 10 steps.
class PastEvaluation : public ::testing::Test {
 protected:
  PastEvaluation() { write({10, 20}); }

  void write(const std::vector<int64_t>& steps) {
    std::string lines = "step,name,class,value\n";
    for (const int64_t step : steps)
      lines += fmt::format("{0},loss,,{1}\n{0},accuracy,,{2}\n", step, 1.0 / step, step / 100.0);
    files::make_folders(folder_.path() / "train");
    files::write_atomically(folder_.path() / "train/evals.csv", lines);
  }
  PastEvaluations past() {
    dist::SelfCommunicator comm(at::kCPU);
    return past_evaluations(options_, comm);
  }

  tests::TemporaryFolder folder_;
  PastOptions options_{.project_dir = folder_.path(),
                       .eval = {.every_epochs = 0, .on_save = true, .patience = 1},
                       .publish = {.best_by = "eval.accuracy"},
                       .clock = {.step = 20, .steps_per_epoch = 10},
                       .is_own_save = true};
};

TEST_F(PastEvaluation, IsMissingWhereTheSaveWasNotEvaluated) {
  EXPECT_FALSE(past().is_missing);
  write({10});
  EXPECT_TRUE(past().is_missing);
  options_.eval = {.every_epochs = 2};  // without on_save, at the ends of epochs
  EXPECT_TRUE(past().is_missing);
  options_.eval.every_epochs = 3;
  EXPECT_FALSE(past().is_missing);
  options_.eval.on_save = true;
  options_.is_own_save = false;
  EXPECT_FALSE(past().is_missing);
  options_.is_own_save = true;
  options_.has_eval_data = false;
  EXPECT_FALSE(past().is_missing);
}

TEST_F(PastEvaluation, IsMissingWhereItsExportIs) {
  options_.publish.after_evaluation = true;
  EXPECT_TRUE(past().is_missing);
  files::make_folders(folder_.path() / "saved_models/20");
  EXPECT_FALSE(past().is_missing);
}

TEST_F(PastEvaluation, ThatIsMadeAgainIsNotCountedBefore) {
  Patience twenty = past().patience;
  EXPECT_FALSE(twenty.add(0.15));  // less than 0.2 of step 20
  options_.publish.after_evaluation = true;
  Patience ten = past().patience;
  EXPECT_TRUE(ten.add(0.15));
}

}  // namespace evaluation_test
}  // namespace lockstep::train
