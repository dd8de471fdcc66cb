// Callbacks in the loops of training and evaluation.
#include "train/callback_hook.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/eval_metric.h"
#include "support/temporary_folder.h"
#include "support/thread_world.h"
#include "tests/coord/recording_callback.h"
#include "tests/train/small_run.h"
#include "train/evaluator.h"

namespace lockstep::train {
namespace callback_hook_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::SmallRun;
using tests::SmallRunOptions;

/// Notes, at each of its calls, what its context says and what it gets.
class Witness : public coord::Callback {
 public:
  struct Seen {
    std::string call;
    coord::CallbackContext context;
    coord::DataMap data;
  };

  Witness(std::vector<std::string> keys, coord::RunOn run_on, std::vector<Seen>* seen)
      : keys_(std::move(keys)), run_on_(run_on), seen_(*seen) {}
  std::vector<std::string> incoming_keys() const override { return keys_; }
  coord::RunOn run_on() const override { return run_on_; }
  void begin() override { note("begin", {}); }
  void on_iteration_start() override { note("start", {}); }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    note("iteration", data);
    return coord::DataMap();
  }
  void end() override { note("end", {}); }

 private:
  void note(const char* call, const coord::DataMap& data) {
    seen_.push_back({call, context(), data});
  }

  const std::vector<std::string> keys_;
  const coord::RunOn run_on_;
  std::vector<Seen>& seen_;
};

std::unique_ptr<Hook> witness(dist::Communicator& comm, coord::Mode mode,
                              const std::vector<std::string>& keys, coord::RunOn run_on,
                              std::vector<Witness::Seen>* seen) {
  return to_hook(
      {"witness", std::make_unique<Witness>(keys, run_on, seen)},
      {.mode = mode, .rank = comm.rank(), .world_size = comm.world_size(), .log_dir = "results"});
}

/// 10 samples in batches of 4: three steps an epoch, the last one's batch short.
struct Loop {
  explicit Loop(dist::Communicator& comm, const SmallRunOptions& options = {.keeps_tensors = true})
      : run(comm, options),
        hooks({.rank = comm.rank(),
               .world_size = comm.world_size(),
               .steps_per_epoch = run.clock.steps_per_epoch,
               .model = *run.model}) {}

  void train(int num_steps) {
    hooks.begin(coord::Mode::kTrain, run.clock.step, run.clock.steps_per_epoch);
    for (int i = 0; i < num_steps; ++i) {
      hooks.before_step(run.clock.step);
      const StepReport report = run.step();
      hooks.after_step({.iteration = report.step - 1,
                        .step = report.step,
                        .loss = report.loss,
                        .network_s = report.phases.forward + report.phases.backward,
                        .tensors = &run.tensors,
                        .report = &report});
    }
    hooks.end();
  }

  EvalResult evaluate(int64_t batch_size) {
    return train::evaluate(ModelHandler(*run.model), run.loss, run.dataset,
                           {.batch_size = batch_size}, run.control,
                           {.hooks = &hooks, .step = run.clock.step});
  }

  SmallRun run;
  Hooks hooks;
};

std::vector<std::string> calls_of(const std::vector<Witness::Seen>& seen) {
  std::vector<std::string> calls;
  for (const Witness::Seen& one : seen) calls.push_back(one.call);
  return calls;
}

TEST(CallbackHook, N47_N56_a_callback_runs_around_each_step_of_training) {
  for (const int world_size : {1, 2})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      std::vector<Witness::Seen> seen;
      Loop loop(comm);
      const auto hook = witness(comm, coord::Mode::kTrain,
                                {"inputs", "targets", "logits", "loss", "step", "epoch",
                                 "learning_rate", "sparsity", "_gradient_norm"},
                                coord::RunOn::kAll, &seen);
      loop.hooks.add(*hook);
      EXPECT_TRUE(loop.hooks.read_tensors());
      loop.train(4);
      EXPECT_THAT(calls_of(seen), ElementsAre("begin", "start", "iteration", "start", "iteration",
                                              "start", "iteration", "start", "iteration", "end"));
      int64_t num_samples = 0;
      for (size_t i = 2, step = 0; i < seen.size(); i += 2, ++step) {
        const coord::CallbackContext& context = seen[i].context;
        EXPECT_EQ(context.mode, coord::Mode::kTrain);
        EXPECT_TRUE(context.is_training());
        EXPECT_EQ(context.rank, comm.rank());
        EXPECT_EQ(context.world_size, world_size);
        EXPECT_EQ(context.number_iterations_per_epoch, 3);
        EXPECT_EQ(context.iteration_info.iteration_number, static_cast<int64_t>(step));
        EXPECT_EQ(context.iteration_info.epoch_number, step < 3 ? 0 : 1);
        EXPECT_FALSE(context.iteration_info.is_last_iteration);
        EXPECT_GT(context.iteration_info.execution_time, 0);
        EXPECT_EQ(context.summary_step, static_cast<int64_t>(step) + 1);
        EXPECT_EQ(context.log_dir,
                  world_size == 1 ? "results" : "results/rank_00" + std::to_string(comm.rank()));
        const coord::DataMap& data = seen[i].data;
        EXPECT_EQ(data.tensor("step").item<int64_t>(), static_cast<int64_t>(step) + 1);
        EXPECT_GT(data.tensor("loss").item<double>(), 0);
        EXPECT_DOUBLE_EQ(data.tensor("learning_rate").item<double>(), 0.1);
        EXPECT_FALSE(data.contains("gradient_norm"));
        const int64_t rows = data.tensor("inputs").size(0);
        EXPECT_EQ(data.tensor("targets").size(0), rows);
        EXPECT_EQ(data.tensor("logits").sizes(), (std::vector<int64_t>{rows, 4}));
        EXPECT_FALSE(data.tensor("logits").requires_grad());
        num_samples += rows;
      }
      if (world_size == 1) {
        EXPECT_EQ(num_samples, 4 + 4 + 2 + 4);
      }
    });
}

TEST(CallbackHook, Tensors_are_kept_only_where_somebody_here_reads_them) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    std::vector<Witness::Seen> seen;
    const auto reads = [&](const std::vector<std::string>& keys, coord::RunOn run_on) {
      return witness(comm, coord::Mode::kTrain, keys, run_on, &seen)->reads_tensors();
    };
    EXPECT_FALSE(reads({"loss", "step"}, coord::RunOn::kAll));
    EXPECT_TRUE(reads({"_logits"}, coord::RunOn::kAll));
    EXPECT_EQ(reads({"inputs"}, coord::RunOn::kRank0), comm.rank() == 0);
  });
}

TEST(CallbackHook, N50_the_outputs_are_those_that_the_loss_was_taken_of) {
  tests::run_ranks(1, [](dist::Communicator& comm) {
    for (const bool elastic : {false, true}) {  // computed in two parts, or in eight
      std::vector<Witness::Seen> seen;
      SmallRunOptions options{.keeps_tensors = true, .elastic = elastic};
      options.train.replicas_to_aggregate = elastic ? 1 : 2;
      Loop loop(comm, options);
      const auto hook = witness(comm, coord::Mode::kTrain, {"logits", "targets", "loss"},
                                coord::RunOn::kAll, &seen);
      loop.hooks.add(*hook);
      loop.train(1);
      const coord::DataMap& data = seen.at(2).data;
      EXPECT_NEAR(
          at::cross_entropy_loss(data.tensor("logits"), data.tensor("targets")).item<double>(),
          data.tensor("loss").item<double>(), 1e-6);
    }
  });
}

TEST(CallbackHook, A_rank_without_samples_gets_empty_tensors) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    std::vector<Witness::Seen> seen;
    Loop loop(comm);  // the third batch has two samples
    const auto hook = witness(comm, coord::Mode::kTrain, {"inputs", "targets", "logits"},
                              coord::RunOn::kAll, &seen);
    loop.hooks.add(*hook);
    loop.train(3);
    const coord::DataMap& last = seen.at(6).data;
    const int64_t rows = data::shard_of(2, comm.rank(), 3).size();
    EXPECT_EQ(last.tensor("inputs").sizes(), (std::vector<int64_t>{rows, 3}));
    EXPECT_EQ(last.tensor("logits").sizes(), (std::vector<int64_t>{rows, 4}));
  });
}

TEST(CallbackHook, N45_N65_each_evaluation_begins_and_ends_and_shares_its_last_step) {
  for (const int world_size : {1, 2})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      std::vector<Witness::Seen> seen;
      Loop loop(comm);
      for (int i = 0; i < 3; ++i) (void)loop.run.step();
      const auto hook =
          witness(comm, coord::Mode::kEval, {"inputs", "targets", "logits", "loss", "step"},
                  coord::RunOn::kAll, &seen);
      loop.hooks.add(*hook);
      const EvalResult result = loop.evaluate(2);
      std::vector<std::string> expected = {"begin"};
      const int64_t num_batches = world_size == 1 ? 5 : 3;  // of 10 samples, or of 5
      for (int64_t i = 0; i < num_batches; ++i)
        expected.insert(expected.end(), {"start", "iteration"});
      expected.emplace_back("end");
      EXPECT_EQ(calls_of(seen), expected);
      double loss_sum = 0;
      for (int64_t i = 0; i < num_batches; ++i) {
        const Witness::Seen& one = seen[static_cast<size_t>(2 + 2 * i)];
        EXPECT_EQ(one.context.mode, coord::Mode::kEval);
        EXPECT_EQ(one.context.number_iterations_per_epoch, num_batches);
        EXPECT_EQ(one.context.iteration_info.iteration_number, i);
        EXPECT_EQ(one.context.iteration_info.epoch_number, 0);  // the one that it ends
        EXPECT_EQ(one.context.summary_step, 3 - num_batches + 1 + i);
        EXPECT_EQ(one.context.log_dir, world_size == 1
                                           ? "results/3"
                                           : "results/3/rank_00" + std::to_string(comm.rank()));
        EXPECT_EQ(one.data.tensor("step").item<int64_t>(), 3);
        loss_sum += one.data.tensor("loss").item<double>() *
                    static_cast<double>(one.data.tensor("inputs").size(0));
      }
      if (world_size == 1) {
        EXPECT_NEAR(loss_sum / 10, result.loss, 1e-9);
      }
      seen.clear();
      (void)loop.evaluate(10);
      EXPECT_THAT(calls_of(seen), ElementsAre("begin", "start", "iteration", "end"));
    });
}

/// Share of samples of class 0, over any number of ranks.
coord::EvalMetric share_of_first() {
  return {.incoming_keys = {"targets"},
          .num_sums = 2,
          .sums =
              [](const coord::DataMap& data) {
                const at::Tensor& targets_B = data.tensor("targets");
                return at::tensor(
                    {targets_B.eq(0).sum().item<double>(), static_cast<double>(targets_B.numel())});
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<coord::EvalValue> {
            return {{"first", sums_S[0] / sums_S[1]}};
          }};
}

coord::WantedCallback wanted_kpi(std::vector<coord::Mode> modes) {
  return {.name = "kpi", .modes = std::move(modes), .make = [](const coord::Services& services) {
            return std::make_unique<coord::KpiEvaluator>(share_of_first(), services);
          }};
}

TEST(CallbackHook, N52_N54_KPIs_of_an_evaluation_are_those_of_one_rank) {
  std::vector<double> found;
  for (const int world_size : {1, 2, 3, 11})  // with 11 one rank has no sample
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      Loop loop(comm);
      double shown = -1;
      const auto hook =
          make_callback_hook({wanted_kpi({coord::Mode::kEval})},
                             {.mode = coord::Mode::kEval,
                              .rank = comm.rank(),
                              .world_size = comm.world_size(),
                              .log_dir = "results"},
                             comm, [&](const std::string&, double value) { shown = value; });
      loop.hooks.add(*hook);
      const EvalResult result = loop.evaluate(2);
      EXPECT_EQ(result.kpis.at("first"), shown);
      if (comm.rank() == 0) found.push_back(shown);
    });
  EXPECT_GT(found.at(0), 0);
  EXPECT_THAT(found, ElementsAre(found[0], found[0], found[0], found[0]));
}

TEST(CallbackHook, N53_KPIs_of_training_are_told_at_each_epochs_end) {
  std::vector<std::vector<double>> found;
  for (const int world_size : {1, 3})
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      Loop loop(comm);
      std::vector<double> shown;
      const auto hook = make_callback_hook(
          {wanted_kpi({coord::Mode::kTrain})},
          {.rank = comm.rank(), .world_size = comm.world_size(), .log_dir = "results"}, comm,
          [&](const std::string&, double value) { shown.push_back(value); });
      loop.hooks.add(*hook);
      loop.train(6);
      if (comm.rank() == 0) found.push_back(shown);
    });
  ASSERT_EQ(found.at(0).size(), 2U);  // both of all samples
  EXPECT_EQ(found[0][0], found[0][1]);
  EXPECT_EQ(found[0], found[1]);
}

/// Lets only rank 0 continue.
class OnFirstRank : public coord::Callback {
 public:
  std::vector<std::string> incoming_keys() const override { return {"targets"}; }
  std::vector<std::string> generated_keys() const override { return {"chosen"}; }
  coord::RunOn run_on() const override { return coord::RunOn::kAll; }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    if (context().rank != 0) return std::nullopt;
    coord::DataMap made;
    made.put("chosen", data.tensor("targets"));
    return made;
  }
};

/// Samples of `chosen`.
coord::EvalMetric num_chosen() {
  return {.incoming_keys = {"chosen"},
          .num_sums = 1,
          .sums =
              [](const coord::DataMap& data) {
                return at::full({1}, data.tensor("chosen").numel(), at::kDouble);
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<coord::EvalValue> {
            return {{"chosen", sums_S[0]}};
          }};
}

TEST(CallbackHook, N26_a_rank_that_was_halted_takes_part_in_the_sums_of_an_epoch) {
  tests::run_ranks(2, [](dist::Communicator& comm) {
    Loop loop(comm);
    std::vector<double> shown;
    const std::vector<coord::Mode> modes = {coord::Mode::kTrain};
    const auto hook = make_callback_hook(
        {{.name = "choose",
          .modes = modes,
          .make = [](const coord::Services&) { return std::make_unique<OnFirstRank>(); }},
         {.name = "kpi",
          .modes = modes,
          .make =
              [](const coord::Services& services) {
                return std::make_unique<coord::KpiEvaluator>(num_chosen(), services);
              }}},
        {.rank = comm.rank(), .world_size = comm.world_size(), .log_dir = "results"}, comm,
        [&](const std::string&, double value) { shown.push_back(value); });
    loop.hooks.add(*hook);
    loop.train(6);
    EXPECT_THAT(shown, ElementsAre(5, 5));  // rank 0's of 10 samples, on both ranks
  });
}

TEST(CallbackHook, Services_gather_maps_of_all_ranks) {
  tests::run_ranks(3, [](dist::Communicator& comm) {
    coord::DataMap own, inner;
    inner.put("rank", at::full({2}, comm.rank(), at::kLong));
    own.put("texts", std::vector<std::string>(static_cast<size_t>(comm.rank()), "word"));
    own.put("inner", std::make_shared<const coord::DataMap>(inner));
    const std::vector<coord::DataMap> all = services_over(comm).gather_over_ranks(own);
    ASSERT_EQ(all.size(), 3U);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(all[rank].texts("texts").size(), static_cast<size_t>(rank));
      EXPECT_TRUE(at::equal(all[rank].map("inner").tensor("rank"), at::full({2}, rank, at::kLong)));
    }
  });
}

TEST(CallbackHook, A_key_that_a_mode_does_not_have_is_refused_before_the_start) {
  dist::SelfCommunicator alone;
  std::vector<Witness::Seen> seen;
  EXPECT_THAT(
      tests::fault_of([&] {
        (void)witness(alone, coord::Mode::kEval, {"learning_rate"}, coord::RunOn::kAll, &seen);
      }),
      HasSubstr(
          "78 [callbacks] callback 'witness' reads 'learning_rate', which no callback generates"));
  EXPECT_THAT(tests::fault_of([&] {
                (void)to_hook({"own", std::make_unique<Witness>(std::vector<std::string>{"logits"},
                                                                coord::RunOn::kAll, &seen)},
                              {.has_outputs = false});
              }),
              HasSubstr("reads 'logits', which no callback generates"));
}

}  // namespace callback_hook_test
}  // namespace lockstep::train
