#include "infer/inferer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "coord/tf_records_saver.h"
#include "small_networks.h"
#include "support/temporary_folder.h"

namespace lockstep::infer {
namespace inferer_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using tests::feed_from;
using tests::tensor_in;

/// Lists of feeds, one a `next`; endless where `num_iterations` is negative.
class CountedFeeder final : public DataFeeder {
 public:
  CountedFeeder(int64_t num_iterations, int64_t samples_of_each, int64_t in_list = 1)
      : num_left_(num_iterations), samples_(samples_of_each), in_list_(in_list) {}

  std::optional<coord::DataMap> next() override { return std::nullopt; }
  std::optional<std::vector<coord::DataMap>> next_list() override {
    if (num_left_ == 0) return std::nullopt;
    --num_left_;
    const int64_t number = num_given_++;
    if (number == throws_at_) throw Error(ExitCode::kIo, "test", "the feed broke");
    std::vector<coord::DataMap> list;
    for (int64_t i = 0; i < in_list_; ++i) {
      list.push_back(feed_from(first_, number == bad_at_ ? 0 : samples_));
      if (number == bad_at_) list.back().put("inputs", at::zeros({1, 1}));
      first_ += 3.0 * static_cast<double>(samples_);
    }
    return list;
  }
  int64_t num_given() const { return num_given_; }

  int64_t throws_at_ = -1, bad_at_ = -1;

 private:
  int64_t num_left_;
  const int64_t samples_, in_list_;
  double first_ = 0;
  std::atomic<int64_t> num_given_{0};
};

struct Record {
  std::vector<std::string> calls;
  std::set<std::thread::id> threads;  ///< of these calls
  std::vector<coord::IterationInfo> infos;
  std::vector<at::Tensor> inputs, logits;
  std::vector<int64_t> given_before;  ///< what the feeder had given when the callback ran
  coord::CallbackContext context;
  bool broke_off = false;  ///< as end() saw it
};

class Recorder final : public coord::Callback {
 public:
  Recorder(Record* record, const CountedFeeder* feeder) : record_(*record), feeder_(*feeder) {}

  std::vector<std::string> incoming_keys() const override { return {"inputs", "logits"}; }
  void begin() override { note("begin"); }
  void on_iteration_start() override { note("start"); }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    note("end of iteration");
    record_.infos.push_back(context().iteration_info);
    record_.inputs.push_back(tensor_in(data, "inputs"));
    record_.logits.push_back(tensor_in(data, "logits"));
    if (sleep_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms_));
    record_.given_before.push_back(feeder_.num_given());
    record_.context = context();
    if (static_cast<int64_t>(record_.infos.size()) - 1 == throws_at_)
      throw Error(ExitCode::kCannotCreate, "test", "the callback broke");
    return coord::DataMap();
  }
  void end() override {
    note("end");
    record_.broke_off = context().is_broken_off;
    if (end_throws_) throw Error(ExitCode::kCannotCreate, "test", "the end broke");
  }

  int64_t throws_at_ = -1, sleep_ms_ = 0;
  bool end_throws_ = false;

 private:
  void note(const char* call) {
    record_.calls.emplace_back(call);
    record_.threads.insert(std::this_thread::get_id());
  }

  Record& record_;
  const CountedFeeder& feeder_;
};

class ThrowsInBegin final : public coord::Callback {
 public:
  void begin() override { throw Error(ExitCode::kCannotCreate, "test", "the begin broke"); }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap&) override { return {}; }
};

/// One inference of the line network with one recording callback, and maybe another behind it.
struct Inference {
  explicit Inference(CountedFeeder* feeder_, bool staged = true)
      : feeder(*feeder_), recorder(new Recorder(&record, feeder_)) {
    options.use_multiprocessing = staged;
    options.engine.engine = "plain";
  }

  InferenceResult run(const std::function<bool()>& stop_asked = {}) {
    std::vector<coord::NamedCallback> callbacks;
    callbacks.push_back({"recorder", std::unique_ptr<coord::Callback>(recorder)});
    if (next_callback) callbacks.push_back({"successor", std::move(next_callback)});
    coord::CallbacksHandler handler(std::move(callbacks), {"inputs", "logits"},
                                    {.mode = coord::Mode::kInfer, .log_dir = log_dir});
    Inferer inferer(tests::line_network(), at::kCPU, feeder, handler, options);
    const InferenceResult result = inferer.run(stop_asked);
    EXPECT_EQ(inferer.num_feeds_waiting(), 0);
    EXPECT_EQ(inferer.num_answers_waiting(), 0);
    return result;
  }

  CountedFeeder& feeder;
  Record record;
  Recorder* recorder;  ///< the handler's, once it runs
  std::unique_ptr<coord::Callback> next_callback;
  std::filesystem::path log_dir = "nowhere";
  InfererOptions options;
};

class InBothWays : public ::testing::TestWithParam<bool> {};
using InfererRows = InBothWays;

TEST_P(InfererRows, N46_N83_callbacks_run_after_each_iteration_with_what_the_network_gave) {
  CountedFeeder feeder(3, 2);
  Inference inference(&feeder, GetParam());
  const InferenceResult result = inference.run();
  EXPECT_EQ(result.num_iterations, 3);
  EXPECT_EQ(result.num_samples, 6);
  EXPECT_FALSE(result.stopped);
  EXPECT_THAT(inference.record.calls,
              ElementsAre("begin", "start", "end of iteration", "start", "end of iteration",
                          "start", "end of iteration", "end"));
  for (size_t i = 0; i < 3; ++i) {
    const at::Tensor inputs = tensor_in(feed_from(6.0 * static_cast<double>(i), 2), "inputs");
    EXPECT_TRUE(at::equal(inference.record.inputs[i], inputs));
    EXPECT_TRUE(at::equal(inference.record.logits[i], at::linear(inputs, tests::weight_23())));
  }
}

TEST_P(InfererRows, N84_list_of_feeds_is_one_iteration_and_gives_what_one_feed_gives) {
  CountedFeeder one(2, 8), four(2, 2, /*in_list=*/4);
  Inference with_one(&one, GetParam()), with_four(&four, GetParam());
  EXPECT_EQ(with_one.run().num_samples, 16);
  EXPECT_EQ(with_four.run().num_samples, 16);
  EXPECT_EQ(with_one.record.calls, with_four.record.calls);
  ASSERT_EQ(with_four.record.logits.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(with_one.record.inputs[i], with_four.record.inputs[i]));
    EXPECT_TRUE(at::equal(with_one.record.logits[i], with_four.record.logits[i]));
  }
}

/// Checks the context in the last of three iterations.
void expect_known(const coord::CallbackContext& context) {
  EXPECT_EQ(context.mode, coord::Mode::kInfer);
  EXPECT_FALSE(context.is_training());
  EXPECT_EQ(context.summary_writer, nullptr);
  EXPECT_EQ(context.summary_step, 2);
  EXPECT_EQ(context.log_dir, "nowhere");
  EXPECT_FALSE(context.number_iterations_per_epoch);  // this feeder does not know
}

TEST_P(InfererRows, N21_the_last_iteration_is_known_and_so_is_every_other_field) {
  CountedFeeder feeder(3, 2);
  Inference inference(&feeder, GetParam());
  (void)inference.run();
  std::vector<bool> is_last;
  for (size_t i = 0; i < 3; ++i) {
    const coord::IterationInfo& info = inference.record.infos.at(i);
    EXPECT_EQ(info.iteration_number, static_cast<int64_t>(i));
    EXPECT_EQ(info.epoch_number, 0);
    EXPECT_GT(info.execution_time, 0);
    is_last.push_back(info.is_last_iteration);
  }
  EXPECT_THAT(is_last, ElementsAre(false, false, true));
  expect_known(inference.record.context);
}

TEST_P(InBothWays, AnEmptyFeedBeginsAndEnds) {
  CountedFeeder feeder(0, 2);
  Inference inference(&feeder, GetParam());
  EXPECT_EQ(inference.run().num_iterations, 0);
  EXPECT_THAT(inference.record.calls, ElementsAre("begin", "end"));
}

TEST_P(InBothWays, CallbacksHaveOneThreadFromBeginToEnd) {
  CountedFeeder feeder(5, 2);
  Inference inference(&feeder, GetParam());
  (void)inference.run();
  EXPECT_EQ(inference.record.threads.size(), 1U);
  CountedFeeder breaks(-1, 2);
  breaks.throws_at_ = 3;
  Inference broken(&breaks, GetParam());
  EXPECT_THROW((void)broken.run(), Error);
  EXPECT_EQ(broken.record.calls.back(), "end");
  EXPECT_EQ(broken.record.threads.size(), 1U);
}

TEST_P(InBothWays, OneIterationIsTheLast) {
  CountedFeeder feeder(1, 2);
  Inference inference(&feeder, GetParam());
  (void)inference.run();
  EXPECT_TRUE(inference.record.infos.at(0).is_last_iteration);
}

std::string fault_of(Inference* inference) {
  try {
    (void)inference->run();
  } catch (const Error& fault) {
    return fault.what();
  }
  return "nothing was thrown";
}

TEST_P(InBothWays, WhatOneStageThrowsEndsAllThree) {
  {
    CountedFeeder feeder(-1, 2);
    feeder.throws_at_ = 5;
    Inference inference(&feeder, GetParam());
    EXPECT_THAT(fault_of(&inference), HasSubstr("the feed broke"));
  }
  {
    CountedFeeder feeder(-1, 2);
    feeder.bad_at_ = 5;
    Inference inference(&feeder, GetParam());
    EXPECT_THAT(fault_of(&inference), HasSubstr("the feed has float32 [1, 1]"));
    EXPECT_LE(inference.record.infos.size(), 5U);
  }
  {
    CountedFeeder feeder(-1, 2);
    Inference inference(&feeder, GetParam());
    inference.recorder->throws_at_ = 5;
    EXPECT_THAT(fault_of(&inference), HasSubstr("the callback broke"));
    EXPECT_EQ(inference.record.infos.size(), 6U);
  }
}

void break_at(const std::string& stage, CountedFeeder* feeder, Inference* inference) {
  if (stage == "feed") feeder->throws_at_ = 5;
  if (stage == "network") feeder->bad_at_ = 5;
  if (stage == "callback") inference->recorder->throws_at_ = 5;
  if (stage == "begin") inference->next_callback = std::make_unique<ThrowsInBegin>();
  inference->recorder->end_throws_ = true;
}

TEST_P(InBothWays, AfterAnErrorCallbacksThatBeganEndAndTheFirstErrorIsTold) {
  const std::map<std::string, std::string> said_by_stage = {
      {"feed", "the feed broke"},
      {"network", "the feed has float32 [1, 1]"},
      {"callback", "the callback broke"},
      {"begin", "the begin broke"}};
  for (const auto& [stage, said] : said_by_stage) {
    CountedFeeder feeder(-1, 2);
    Inference inference(&feeder, GetParam());
    break_at(stage, &feeder, &inference);
    EXPECT_THAT(fault_of(&inference), AllOf(HasSubstr(said), Not(HasSubstr("the end broke"))));
    const std::vector<std::string>& calls = inference.record.calls;
    EXPECT_EQ(calls.back(), "end") << stage;
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "end"), 1) << stage;
  }
}

int64_t num_records(const std::filesystem::path& path) {
  const std::string bytes = files::read(path);
  int64_t num = 0;
  for (size_t at = 0; at < bytes.size(); ++num) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.substr(at, sizeof length).data(), sizeof length);
    at += 8 + 4 + length + 4;
    EXPECT_LE(at, bytes.size()) << path << " is cut";
  }
  return num;
}

TEST_P(InBothWays, AfterAnErrorFilesHoldTheIterationsBeforeIt) {
  const tests::TemporaryFolder folder;
  CountedFeeder feeder(-1, 2);
  Inference inference(&feeder, GetParam());
  inference.recorder->throws_at_ = 5;  // it runs first: the saver sees 5 iterations of 2 samples
  inference.log_dir = folder.path();
  inference.next_callback = std::make_unique<coord::TfRecordsSaverCallback>(
      coord::TfRecordsSaverOptions{.saver = {.keys = {"logits"}}, .max_samples_per_file = 4});
  EXPECT_THAT(fault_of(&inference), HasSubstr("the callback broke"));
  std::map<std::string, int64_t> num_samples;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    num_samples[entry.path().extension()] += num_records(entry.path());
  EXPECT_THAT(num_samples, ElementsAre(Pair(".tfrecord", 10)));
}

TEST_P(InBothWays, AStopEndsTheFeedAndCallsEnd) {
  CountedFeeder feeder(-1, 2);
  Inference inference(&feeder, GetParam());
  const InferenceResult result = inference.run([&feeder] { return feeder.num_given() > 20; });
  EXPECT_TRUE(result.stopped);
  EXPECT_GE(result.num_iterations, 19);
  EXPECT_LE(result.num_iterations, 21);
  EXPECT_EQ(inference.record.calls.back(), "end");
  EXPECT_TRUE(inference.record.broke_off);
}

INSTANTIATE_TEST_SUITE_P(StagedAndInTurn, InBothWays, ::testing::Values(true, false));
INSTANTIATE_TEST_SUITE_P(StagedAndInTurn, InfererRows, ::testing::Values(true, false));

TEST(InfererStages, N86_three_stages_run_at_once_with_bounded_queues) {
  CountedFeeder staged(30, 1), in_turn(30, 1);
  Inference first(&staged, true), second(&in_turn, false);
  first.recorder->sleep_ms_ = 2;
  (void)first.run();
  (void)second.run();
  int64_t most_ahead = 0;
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(second.record.given_before[i], std::min<int64_t>(static_cast<int64_t>(i) + 2, 30));
    most_ahead = std::max(most_ahead, first.record.given_before[i] - static_cast<int64_t>(i));
    EXPECT_EQ(first.record.infos[i].iteration_number, static_cast<int64_t>(i));
    EXPECT_TRUE(at::equal(first.record.logits[i], second.record.logits[i]));
  }
  // One each: with the callbacks, with the network, waiting for room, ahead; two in each queue.
  EXPECT_LE(most_ahead, 4 + 2 * 2);
  EXPECT_GE(most_ahead, 5);
}

TEST(InfererStages, N92_a_tensorrt_config_goes_to_the_constructor) {
  CountedFeeder feeder(1, 5);
  Record record;
  std::vector<coord::NamedCallback> callbacks;
  callbacks.push_back({"recorder", std::make_unique<Recorder>(&record, &feeder)});
  coord::CallbacksHandler handler(std::move(callbacks), {"inputs", "logits"}, {});
  LoadedNetwork network = tests::line_network();
  network.module = nullptr;
  std::vector<int64_t> sizes;
  network.forward = [&sizes](const at::Tensor& inputs_B3) {
    sizes.push_back(inputs_B3.size(0));
    return at::linear(inputs_B3, tests::weight_23());
  };
  Inferer inferer(network, at::kCPU, feeder, handler, {}, TensorrtConfig{.max_batch_size = 2});
  (void)inferer.run();
  EXPECT_THAT(sizes, ElementsAre(2, 2, 1));
  EXPECT_EQ(record.logits.at(0).size(0), 5);
}

}  // namespace inferer_test
}  // namespace lockstep::infer
