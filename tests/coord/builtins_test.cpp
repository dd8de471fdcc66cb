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
      "predictions: {type: prediction_saver, keys: [p, _a], not_batch_keys: [a], modes: [infer]}\n"
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

/// Shows KPIs of these names, which are known before where `is_known`.
class Shows : public Callback {
 public:
  Shows(std::vector<std::string> names, bool is_known, Services services)
      : names_(std::move(names)), is_known_(is_known), services_(std::move(services)) {}
  std::vector<std::string> kpi_names() const override {
    return is_known_ ? names_ : std::vector<std::string>();
  }
  std::optional<DataMap> on_iteration_end(const DataMap&) override {
    for (const std::string& name : names_) services_.set_kpi(name, 1);
    return DataMap();
  }

 private:
  const std::vector<std::string> names_;
  const bool is_known_;
  const Services services_;
};

WantedCallback showing(const std::string& callback, const std::string& kpi, bool is_known) {
  return {callback, {Mode::kEval}, [=](const Services& services) {
            return std::make_unique<Shows>(std::vector<std::string>{kpi}, is_known, services);
          }};
}

TEST(CallbackTypes, N54_a_KPI_has_a_name_of_its_own) {
  Services services;
  services.own_figures = {"num_samples", "top_5"};
  const auto fault = [&](const std::vector<WantedCallback>& wanted) {
    return fault_of([&] {
      for (const NamedCallback& each : make_callbacks(wanted, Mode::kEval, services))
        for (int i = 0; i < 2; ++i) (void)each.callback->on_iteration_end({});
    });
  };
  EXPECT_EQ(fault({showing("a", "mean", true), showing("b", "share", false)}), "");
  for (const bool is_known : {true, false}) {
    EXPECT_THAT(
        fault({showing("a", "num_samples", is_known)}),
        HasSubstr("78 [callbacks] callback 'a' shows a KPI 'num_samples', which is the name of"));
    EXPECT_THAT(fault({showing("a", "mean", true), showing("b", "mean", is_known)}),
                HasSubstr("78 [callbacks] callbacks 'a' and 'b' both show a KPI 'mean'"));
  }
  const auto read_fault = [&](const std::string& text) {
    return fault_of([&] { make_callbacks(read(text), Mode::kEval, services); });
  };
  EXPECT_THAT(read_fault("topk: {k: [1, 5]}"), HasSubstr("shows a KPI 'top_5'"));  // at the start
  EXPECT_THAT(read_fault("topk: {k: [1]}\nother: {type: topk, k: [3, 1]}"),
              HasSubstr("'topk' and 'other' both show a KPI 'top_1'"));
  EXPECT_EQ(read_fault("topk: {k: [1, 1]}\nother: {type: topk, k: [3], modes: [train]}"), "");
}

TEST(CallbackTypes, Lists_of_nothing_and_names_of_no_key_are_78) {
  EXPECT_THAT(fault_of([] { read("log: {modes: []}"); }),
              HasSubstr("'modes' is empty, so the callback would never run"));
  EXPECT_THAT(fault_of([] { read("topk: {k: []}"); }), HasSubstr("'k' is empty"));
  for (const std::string type :
       {"prediction_saver", "tfrecords_saver", "collector", "statistics"}) {
    const std::string more = type == "collector" ? ", every: 2" : "";
    EXPECT_THAT(fault_of([&] { read(type + ": {keys: []" + more + "}"); }),
                HasSubstr("'keys' is empty"));
    EXPECT_THAT(
        fault_of([&] {
          read(type + ": {keys: [boxes, _anchors], not_batch_keys: [anchor]" + more + "}");
        }),
        HasSubstr(
            "'anchor' is not one of 'keys' (did you mean 'anchors'?); available: boxes, anchors"));
    EXPECT_EQ(fault_of([&] {
                read(type + ": {keys: [boxes, _anchors], not_batch_keys: [anchors]" + more + "}");
              }),
              "");
  }
}

TEST(CallbackTypes, Unknown_callbacks_keys_and_modes_are_78) {
  EXPECT_THAT(fault_of([] { read("loog: {}"); }),
              HasSubstr("unknown callback 'loog' (did you mean 'log'?)"));
  EXPECT_THAT(fault_of([] { read("mine: {type: loog}"); }), HasSubstr("unknown callback 'loog'"));
  EXPECT_THAT(fault_of([] { read("log: {evry: 3}"); }), HasSubstr("every"));
  EXPECT_THAT(fault_of([] { read("log: {modes: [evel]}"); }),
              HasSubstr("unknown mode 'evel' (did you mean 'eval'?)"));
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
  for (const int64_t num_more : {0, 1}) {  // the seventh is left; then none is
    const int64_t before = log::num_lines(log::Level::kInfo);
    run.handler->end();
    EXPECT_EQ(log::num_lines(log::Level::kInfo) - before, num_more == 0 ? 1 : 0);
    run.handler->begin();
    for (int i = 0; i < 3; ++i) run.iterate(logits(), labels());
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
              HasSubstr("65 [callbacks] 'targets' contains class 3"));
  EXPECT_THAT(fault_of([&] { run.iterate(logits(), at::tensor({0})); }),
              HasSubstr("expected [samples, classes] and [samples]"));
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

TEST(Builtins, N41_each_evaluate_of_statistics_has_a_file_of_its_own) {
  const TemporaryFolder folder;
  CallbacksHandler handler(make_callbacks(read("statistics: {keys: [x]}"), Mode::kInfer, {}),
                           {"x", "_evaluate"}, {.mode = Mode::kInfer, .log_dir = folder.path()});
  handler.begin();
  for (int64_t i = 0; i < 5; ++i) {
    handler.context().iteration_info.iteration_number = i;
    DataMap data;
    data.put("x", at::zeros({i + 1, 2}));
    if (i == 1 || i == 3) data.put("evaluate", at::ones({1}));
    handler.on_iteration_end(data);
  }
  handler.end();
  const auto count_in = [&](const std::string& file) {
    const std::string text = files::read(folder.path() / file);
    return text.substr(text.find("\"count\": ") + 9, 1);
  };
  EXPECT_EQ(count_in("statistics-000001.json"), "3");
  EXPECT_EQ(count_in("statistics-000003.json"), "7");
  EXPECT_EQ(count_in("statistics.json"), "5");  // of what came behind the last
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

TEST(Builtins, What_broke_off_is_not_written_as_if_whole) {
  for (const std::string text :
       {"confusion: {num_classes: 3}", "statistics: {keys: [logits], modes: [train, eval]}"}) {
    const std::string file =
        text.substr(0, 3) == "con" ? "log/confusion.csv" : "log/statistics.json";
    const SmallRun run(text);
    run.iterate(logits(), labels());
    run.handler->end(/*is_broken_off=*/true);
    EXPECT_FALSE(std::filesystem::exists(run.folder.path() / file));
    run.handler->begin();
    run.iterate(logits(), labels());
    run.handler->end_after_fault();
    EXPECT_FALSE(std::filesystem::exists(run.folder.path() / file));
    run.handler->context().mode = Mode::kTrain;  // which has no whole
    run.handler->begin();
    run.iterate(logits(), labels());
    run.handler->end(/*is_broken_off=*/true);
    EXPECT_TRUE(std::filesystem::exists(run.folder.path() / file));
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
