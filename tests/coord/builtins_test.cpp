#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "base/log.h"
#include "coord/callback_types.h"
#include "coord/recording_callback.h"
#include "support/temporary_folder.h"

namespace lockstep::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::fault_of;
using tests::TemporaryFolder;

std::vector<WantedCallback> read(const std::string& text) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("run.yaml", text, &faults);
  ConfigReader in(document.root(), "callbacks", document, &faults);
  std::vector<WantedCallback> wanted = read_callbacks(in);
  faults.throw_if_any("config");
  return wanted;
}

std::vector<std::string> names_in_mode(const std::vector<WantedCallback>& wanted, Mode mode) {
  std::vector<std::string> names;
  for (const NamedCallback& each : make_callbacks(wanted, mode, {})) names.push_back(each.name);
  return names;
}

TEST(CallbackTypes, N3_built_ins_and_their_modes) {
  std::vector<std::string> known = callback_types().names();
  known.resize(8);  // other tests add some
  EXPECT_THAT(known, ElementsAre("log", "prediction_saver", "tfrecords_saver", "collector",
                                 "statistics", "summary", "topk", "confusion"));
  const std::vector<WantedCallback> wanted = read(
      "log: {every: 10, keys: [loss], modes: [train]}\n"
      "boxes: {type: tfrecords_saver, keys: [boxes], max_samples_per_file: 5, max_files: 2}\n"
      "predictions: {type: prediction_saver, keys: [p], not_batch_keys: [a], modes: [infer]}\n"
      "collector: {keys: [x], every: 3}\n"
      "statistics: {keys: [x], gather: false}\n"
      "summary: {key: x, as: image, every: 5}\n"
      "topk: {k: [1, 3], outputs: o, labels: l}\n"
      "confusion: {num_classes: 10}\n");
  EXPECT_THAT(names_in_mode(wanted, Mode::kTrain),
              ElementsAre("log", "collector", "statistics", "summary"));
  EXPECT_THAT(names_in_mode(wanted, Mode::kEval),
              ElementsAre("boxes", "collector", "statistics", "summary", "topk", "confusion"));
  EXPECT_THAT(names_in_mode(wanted, Mode::kInfer),
              ElementsAre("boxes", "predictions", "collector", "statistics"));
  EXPECT_THAT(names_in_mode(read("{}"), Mode::kTrain), ElementsAre());
}

TEST(CallbackTypes, Two_that_write_the_same_files_are_78) {
  for (const std::string one : {"prediction_saver, keys: [x]", "tfrecords_saver, keys: [x]",
                                "statistics, keys: [x]", "confusion, num_classes: 3"}) {
    const std::string text = "a: {type: " + one + "}\nb: {type: " + one + "}\n";
    EXPECT_THAT(fault_of([&] { names_in_mode(read(text), Mode::kEval); }),
                HasSubstr("78 [callbacks] callbacks 'a' and 'b' both write "))
        << text;
  }
  EXPECT_THAT(names_in_mode(read("a: {type: prediction_saver, keys: [x]}\n"
                                 "b: {type: prediction_saver, keys: [x], save_prefix: b/}\n"
                                 "c: {type: tfrecords_saver, keys: [x]}\n"
                                 "d: {type: tfrecords_saver, keys: [x], modes: [infer]}\n"),
                            Mode::kEval),
              ElementsAre("a", "b", "c"));
}

TEST(CallbackTypes, Unknown_callbacks_keys_and_modes_are_78) {
  EXPECT_THAT(fault_of([] { read("loog: {}"); }),
              HasSubstr("there is no callback 'loog' (did you mean 'log'?)"));
  EXPECT_THAT(fault_of([] { read("mine: {type: loog}"); }),
              HasSubstr("there is no callback 'loog'"));
  EXPECT_THAT(fault_of([] { read("log: {evry: 3}"); }), HasSubstr("every"));
  EXPECT_THAT(fault_of([] { read("log: {modes: [evel]}"); }),
              HasSubstr("'evel' is no mode (did you mean 'eval'?)"));
  EXPECT_THAT(fault_of([] { read("prediction_saver: {}"); }), HasSubstr("keys"));
  EXPECT_TRUE(fault_of([] { read("log: {every: 0}"); }).starts_with("78 "));
}

/// Runs the section's callbacks on batches of keys logits and targets.
struct SmallRun {
  explicit SmallRun(const std::string& text, Services services = {}) {
    handler = std::make_unique<CallbacksHandler>(
        make_callbacks(read(text), Mode::kEval, services),
        std::vector<std::string>{"logits", "targets"},
        CallbackContext{.mode = Mode::kEval, .log_dir = folder.path() / "log"});
    handler->begin();
  }

  DataMap iterate(const at::Tensor& logits, const at::Tensor& labels) const {
    DataMap data;
    data.put("logits", logits);
    data.put("targets", labels);
    return handler->on_iteration_end(data);
  }
  std::string text_of(const std::string& file) const {
    return files::read(folder.path() / "log" / file);
  }

  TemporaryFolder folder;
  std::unique_ptr<CallbacksHandler> handler;
};

const at::Tensor& logits() {
  static const at::Tensor made = at::tensor({3., 2., 1., 3., 2., 1., 0., 2., 1.}).reshape({3, 3});
  return made;
}
const at::Tensor& labels() {
  static const at::Tensor made = at::tensor({0, 1, 0});
  return made;
}

TEST(Builtins, N27_collector_gives_three_iterations_at_once) {
  const SmallRun run("collector: {keys: [targets], every: 3}");
  for (int i = 0; i < 7; ++i) {
    const DataMap made = run.iterate(logits(), labels());
    EXPECT_EQ(made.contains("collected_targets"), i % 3 == 2) << i;
    if (i == 2) {
      EXPECT_EQ(made.tensor("collected_targets").numel(), 9);
    }
  }
}

TEST(Builtins, Topk_by_hand) {
  std::map<std::string, double> kpis;
  Services services;
  services.set_kpi = [&](const std::string& name, double value) { kpis[name] = value; };
  const SmallRun run("topk: {k: [1, 2, 3]}", services);
  run.iterate(logits(), labels());
  run.iterate(at::full({1, 3}, NAN), at::tensor({0}));
  run.handler->end();
  EXPECT_EQ(kpis,
            (std::map<std::string, double>{{"top_1", 0.25}, {"top_2", 0.5}, {"top_3", 0.75}}));
  EXPECT_THAT(fault_of([&] {
                run.iterate(logits(), at::tensor({0, 1, 3}));
              }),
              HasSubstr("65 [callbacks] 'targets' holds class 3"));
  EXPECT_THAT(fault_of([&] { run.iterate(logits(), at::tensor({0})); }), HasSubstr("wanted are"));
}

TEST(Builtins, Confusion_by_hand) {
  const SmallRun run("confusion: {num_classes: 3}");
  run.iterate(logits(), labels());
  run.iterate(logits(), at::tensor({2, 2, 2}));
  run.handler->end();
  EXPECT_EQ(run.text_of("confusion.csv"), "1,1,0\n1,0,0\n2,1,0\n");
  EXPECT_THAT(fault_of([&] {
                run.iterate(logits(), at::tensor({0, 1, 3}));
              }),
              HasSubstr("there is a sample of class 3, and num_classes is 3"));
}

TEST(Builtins, N44_statistics_by_hand) {
  const SmallRun run("statistics: {keys: [logits]}");
  run.iterate(logits(), labels());
  run.handler->end();
  EXPECT_THAT(run.text_of("statistics.json"), HasSubstr("\"count\": 3"));
  EXPECT_THAT(run.text_of("statistics.json"),
              HasSubstr("\"mean\": [\n      2.0,\n      2.0,\n      1.0\n    ]"));
  EXPECT_THAT(run.text_of("statistics.json"),
              HasSubstr("\"variance\": [\n      2.0,\n      0.0,\n      0.0\n    ]"));
}

TEST(Builtins, N44_statistics_of_all_ranks_are_written_by_the_first) {
  for (const bool gather : {false, true}) {
    const SmallRun run(gather ? "statistics: {keys: [logits]}"
                              : "statistics: {keys: [logits], gather: false}");
    run.handler->context().rank = 1;
    run.handler->context().world_size = 2;
    run.iterate(logits(), labels());
    run.handler->end();
    EXPECT_EQ(std::filesystem::exists(run.folder.path() / "log/rank_001/statistics.json"), !gather);
  }
}

TEST(Builtins, Log_gives_a_line_in_two_iterations) {
  const SmallRun run("log: {every: 2, keys: [logits]}");
  const int64_t before = log::num_lines(log::Level::kInfo);
  for (int i = 0; i < 4; ++i) {
    run.handler->context().iteration_info.iteration_number = i;
    run.iterate(logits(), labels());
  }
  EXPECT_EQ(log::num_lines(log::Level::kInfo) - before, 2);
}

}  // namespace
}  // namespace lockstep::coord
