#include "infer/inferer_options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::infer {
namespace inferer_section_test {

using ::testing::Contains;
using ::testing::HasSubstr;

struct Reading {
  InfererSection section;
  std::string faults;
};

Reading read(const std::string& text) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("inferer.json", text, &faults);
  ConfigReader in(document.root(), "", document, &faults);
  Reading reading{.section = read_inferer_section(&in), .faults = ""};
  in.done();
  reading.faults = faults.empty() ? "" : faults.text();
  return reading;
}

TEST(InferRows, N87_one_process_is_asked_for_as_the_framework_writes_it) {
  EXPECT_TRUE(read("{}").section.options.use_multiprocessing);
  EXPECT_FALSE(read(R"({"run_config": {"use_multiprocessing": false}})")
                   .section.options.use_multiprocessing);
}

TEST(InferRows, N91_every_parameter_of_tensorrt_is_known_and_others_are_refused) {
  const Reading all = read(R"({"tensorrt_config": {"use_tensorrt": true, "max_batch_size": 4,
    "precision_mode": "FP16", "max_workspace_size_bytes": 1024, "minimum_segment_size": 5,
    "is_dynamic_op": true, "maximum_cached_engines": 2}})");
  EXPECT_EQ(all.faults, "");
  const TensorrtConfig& config = all.section.options.engine.tensorrt;
  EXPECT_TRUE(config.use_tensorrt && config.is_dynamic_op);
  EXPECT_EQ(config.max_batch_size, 4);
  EXPECT_EQ(config.precision_mode, "FP16");
  EXPECT_EQ(config.max_workspace_size_bytes, 1024);
  EXPECT_EQ(config.minimum_segment_size, 5);
  EXPECT_EQ(config.maximum_cached_engines, 2);
  EXPECT_THAT(read("tensorrt_config: {max_batchsize: 4}").faults, HasSubstr("max_batch_size"));
}

TEST(InfererSection, FaultsOfTheEngine) {
  EXPECT_THAT(read("tensorrt_config: {max_batch_size: 0}").faults, HasSubstr("max_batch_size"));
  EXPECT_THAT(read("engine: fast").faults, HasSubstr("engine"));
  EXPECT_THAT(read("{engine: plain, tensorrt_config: {use_tensorrt: true}}").faults,
              HasSubstr("remove one"));
  EXPECT_THAT(read("tensorrt_config: {is_dynamic_op: true}").faults, HasSubstr("max_batch_size"));
  EXPECT_THAT(read("run_config: {queue_size: 0}").faults, HasSubstr("queue_size"));
  EXPECT_THAT(read("run_config: {profile: 1}").faults, HasSubstr("profile"));
}

TEST(InfererSection, CallbacksOfItRunInInference) {
  for (const char* modes : {"", ", modes: [infer]", ", modes: [eval, infer]"}) {
    const Reading reading = read(fmt::format("callbacks: {{topk: {{k: [1]{}}}}}", modes));
    EXPECT_EQ(reading.faults, "");
    ASSERT_EQ(reading.section.callbacks.size(), 1U);
    EXPECT_THAT(reading.section.callbacks[0].modes, Contains(coord::Mode::kInfer));
  }
  EXPECT_THAT(read("callbacks: {topk: {modes: [eval]}}").faults,
              HasSubstr("'callbacks' are those of mode infer, which 'modes' lacks"));
}

TEST(InfererSection, AFeedIsASectionANameOrAList) {
  EXPECT_FALSE(read("{}").section.feeds);
  EXPECT_TRUE(read("feed: []").section.feeds->empty());
  EXPECT_EQ(read("feed: train").section.feeds->front().named, "train");
  const Reading list = read("feed: [{type: digits, split: test}, images.npy]");
  EXPECT_EQ(list.faults, "");
  EXPECT_EQ(list.section.feeds->at(0).dataset->type, "digits");
  EXPECT_EQ(list.section.feeds->at(1).named, "images.npy");
  EXPECT_THAT(read("feed: [{type: digit}]").faults, HasSubstr("digits"));
  EXPECT_THAT(read("feed: {}").faults, HasSubstr("'feed' names no data: give its type"));
  EXPECT_THAT(read("feed: [eval, {split: test}]").faults, HasSubstr("'feed[1]' names no data"));
  EXPECT_THAT(read("feed: [[eval]]").faults, HasSubstr("feed[0]"));
}

}  // namespace inferer_section_test
}  // namespace lockstep::infer
