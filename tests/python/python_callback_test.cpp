#include "python/python_types.h"

#include <cmath>
#include <map>
#include <span>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "coord/callbacks_handler.h"
#include "metrics/tensorboard/event_file.h"
#include "python_files.h"
#include "support/temporary_folder.h"

namespace lockstep::python {
namespace python_callback_test {

using coord::CallbackContext;
using coord::CallbacksHandler;
using coord::DataMap;
using coord::Mode;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;
using tests::fault_of;
using tests::python_args;

std::unique_ptr<coord::Callback> made(const std::string& name, const std::string& args = "{}") {
  return make_python_callback(python_args("callbacks.py", name, args), "callbacks.mine");
}

CallbacksHandler handler_of(const std::string& name, const std::vector<std::string>& source_keys,
                            const CallbackContext& context = {}, const std::string& args = "{}") {
  std::vector<coord::NamedCallback> callbacks;
  callbacks.push_back({"mine", made(name, args)});
  return {std::move(callbacks), source_keys, context};
}

DataMap map_of(const std::string& key, const coord::DataValue& value) {
  DataMap data;
  data.put(key, value);
  return data;
}

TEST(PythonCallback, Declares_what_the_class_does_by_list_or_method) {
  const auto verdict = made("Verdict", R"({"min_probability": 0.9})");
  EXPECT_EQ(verdict->incoming_keys(), (std::vector<std::string>{"logits"}));
  EXPECT_EQ(verdict->generated_keys(), (std::vector<std::string>{"classes", "probabilities"}));
  EXPECT_EQ(verdict->run_on(), coord::RunOn::kAll);
  const auto every = made("Every", R"({"every": 3})");
  EXPECT_EQ(every->incoming_keys(), (std::vector<std::string>{"logits", "_targets"}));
  EXPECT_EQ(made("Shared")->run_on(), coord::RunOn::kRank0);
}

TEST(PythonCallback, Maps_share_their_memory_both_ways) {
  CallbacksHandler handler = handler_of("Shared", {"maps", "texts", "x"});
  DataMap data;
  const at::Tensor x = at::zeros({3}), y = at::ones({2}, at::kLong);
  data.put("maps", std::make_shared<const DataMap>(
                       map_of("inner", std::make_shared<const DataMap>(map_of("y", y)))));
  data.put("texts", std::vector<std::string>{"one", "zwölf", ""});
  data.put("x", x);
  const DataMap all = handler.on_iteration_end(data);
  EXPECT_EQ(x[0].item<float>(), 5);  // written by Python
  EXPECT_EQ(all.tensor("x_back").data_ptr(), x.data_ptr());
  EXPECT_EQ(all.texts("texts_back"), data.texts("texts"));
  EXPECT_EQ(all.map("maps_back").map("deeper").map("inner").tensor("y").data_ptr(), y.data_ptr());
  EXPECT_EQ(all.texts("kinds"), (std::vector<std::string>{"dict", "dict", "list", "Tensor"}));
}

/// Runs one iteration, and gives calls.json.
std::string recorded(const CallbackContext& context) {
  CallbacksHandler handler = handler_of("Recorder", {"x"}, context);
  handler.begin();
  handler.context().summary_step = 41;
  handler.context().iteration_info = {.epoch_number = 2, .iteration_number = 5};
  handler.on_iteration_start();
  handler.context().iteration_info.execution_time = 0.25;
  handler.context().iteration_info.is_last_iteration = true;
  handler.on_iteration_end(map_of("x", at::arange(4, at::kFloat)));
  handler.end();
  return files::read(context.log_dir / "calls.json");
}

TEST(PythonCallback, Sees_its_context_in_each_mode) {
  const tests::TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_EQ(
      recorded({.mode = Mode::kInfer, .log_dir = path}),
      R"([["begin", "infer", false, ")" + path +
          R"(", 0, null, [0, 0, 0.0, false], 0, 1, true], ["start", "infer", false, ")" + path +
          R"(", 41, null, [2, 5, 0.0, false], 0, 1, true], ["iteration", "infer", false, ")" +
          path + R"(", 41, null, [2, 5, 0.25, true], 0, 1, true], ["end", "infer", false, ")" +
          path + R"(", 41, null, [2, 5, 0.25, true], 0, 1, true]])");
  EXPECT_THAT(
      recorded({.mode = Mode::kTrain, .log_dir = path, .number_iterations_per_epoch = 9}),
      HasSubstr(R"("iteration", "train", true, ")" + path + R"(", 41, 9, [2, 5, 0.25, true])"));
  EXPECT_THAT(recorded({.mode = Mode::kEval, .log_dir = path, .rank = 0, .world_size = 2}),
              HasSubstr(R"(["end", "eval", false, ")" + path +
                        R"(", 41, null, [2, 5, 0.25, true], 0, 2, true])"));
}

std::string only_file(const tests::TemporaryFolder& folder) {
  for (const std::string& name : files::list(folder.path()))
    if (name.starts_with("events.")) return files::read(folder.path() / name);
  return "";
}

TEST(PythonCallback, Writes_summaries_with_the_one_writer) {
  const tests::TemporaryFolder folder, twin_folder;
  metrics::EventFile file({.folder = folder.path(), .node = "n"}),
      twin({.folder = twin_folder.path(), .node = "n"});
  recorded({.log_dir = folder.path() / "log", .summary_writer = &file});
  file.flush();
  ASSERT_TRUE(file.drain(std::chrono::seconds(20)));
  const std::string bytes = only_file(folder);
  EXPECT_THAT(bytes, HasSubstr("mean"));
  EXPECT_THAT(bytes, HasSubstr("at_seven"));
  for (const auto& [step, scalar] :
       {std::pair<int64_t, metrics::Scalar>{41, {"mean", 1.5}}, {7, {"at_seven", 2.5}}})
    twin.add(step, {&scalar, 1});
  twin.flush();
  ASSERT_TRUE(twin.drain(std::chrono::seconds(20)));
  EXPECT_EQ(bytes.size(), only_file(twin_folder).size());
  const auto value_at = [&](const std::string& tag, const std::string& text) {
    const size_t at = text.find(tag);
    return text.substr(at, tag.size() + 5);  // tag, kind of the value, float32
  };
  for (const char* tag : {"mean", "at_seven"})
    EXPECT_EQ(value_at(tag, bytes), value_at(tag, only_file(twin_folder)));
}

TEST(PythonCallback, Runs_in_a_thread_of_its_own_beside_another_that_calls_Python) {
  CallbacksHandler handler = handler_of("Verdict", {"logits"});
  const auto other = made("Every", R"({"every": 1})");
  CallbackContext context;
  other->set_context(&context);
  DataMap made_there;
  std::thread thread([&] {
    for (int i = 0; i < 2000; ++i)
      made_there = handler.on_iteration_end(map_of("logits", at::eye(3)));
    handler.end();
  });
  for (int i = 0; i < 2000; ++i) (void)other->on_iteration_end(map_of("logits", at::eye(3)));
  thread.join();
  EXPECT_TRUE(at::equal(made_there.tensor("classes"), at::arange(3)));
}

TEST(PythonCallback, What_Python_keeps_of_a_thread_stays_to_its_end) {
  CallbacksHandler handler = handler_of("ByThread", {"x"});
  const auto count = [&] {
    return handler.on_iteration_end(map_of("x", at::eye(1))).tensor("count").item<int64_t>();
  };
  const auto counts_there = [&] {
    std::vector<int64_t> counts;
    std::thread([&] { counts = {count(), count(), count()}; }).join();
    return counts;
  };
  EXPECT_EQ(counts_there(), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(counts_there(), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(count(), 1);
  EXPECT_EQ(count(), 2);
}

/// Error of the first three iterations.
std::string fault(const std::string& how, const std::string& name = "Bad") {
  return fault_of([&] {
    CallbacksHandler handler =
        handler_of(name, {"logits"}, {}, how.empty() ? "{}" : R"({"fault": ")" + how + R"("})");
    handler.begin();
    for (int64_t i = 0; i < 3; ++i) {
      handler.context().iteration_info.iteration_number = i;
      handler.on_iteration_start();
      handler.on_iteration_end(map_of("logits", at::eye(3)));
    }
    handler.end();
  });
}

TEST(PythonCallback, Tells_file_and_line_of_what_is_raised) {
  EXPECT_EQ(fault(""), "nothing");
  EXPECT_THAT(fault("raises"),
              AllOf(StartsWith("78 [python] "),
                    ContainsRegex("/callbacks.py:[0-9]+: KeyError: 'third iteration'"),
                    HasSubstr("(callback 'mine', iteration 2)")));
  EXPECT_THAT(fault("begin"), ContainsRegex("callbacks.py:[0-9]+: RuntimeError: begin fails"));
  EXPECT_THAT(fault("end"), ContainsRegex("callbacks.py:[0-9]+: OSError: end fails"));
  EXPECT_THAT(fault("exits"), ContainsRegex("callbacks.py:[0-9]+: SystemExit: 3"));
  EXPECT_THAT(
      fault("constructor"),
      AllOf(StartsWith("78 "), ContainsRegex("callbacks.py:[0-9]+: ValueError: no such thing")));
}

TEST(PythonCallback, Tells_of_keys_and_values_that_are_wrong) {
  EXPECT_THAT(fault("undeclared"), AllOf(StartsWith("65 "), HasSubstr("returned key 'other'")));
  EXPECT_THAT(fault("nobody_makes"),
              AllOf(StartsWith("78 "), HasSubstr("reads 'logist', which no callback generates")));
  EXPECT_THAT(fault("kind"),
              ContainsRegex("callbacks.py:[0-9]+: Bad.on_iteration_end returned made as float: a "
                            "value is a tensor, a list of strings, or a dict of these"));
  EXPECT_THAT(fault("nested"), HasSubstr("returned made/inner as set"));
  EXPECT_THAT(fault("key"), HasSubstr("with the key 1: keys must be strings"));
  EXPECT_THAT(fault("list"), HasSubstr("returned list, not a dict or None"));
  EXPECT_THAT(fault("incoming_keys"),
              HasSubstr("incoming_keys of Bad is 'logits'; it must be a list of strings"));
  EXPECT_THAT(fault("run_on"), HasSubstr("run_on of Bad is 'rank1'; it must be 'rank0' or 'all'"));
  EXPECT_THAT(fault("attribute"),
              HasSubstr("Bad(...) sets mode, which Lockstep sets before each call"));
  EXPECT_THAT(fault("", "WrongParameters"),
              AllOf(StartsWith("78 "),
                    ContainsRegex("callbacks.py:[0-9]+: on_iteration_end\\(logits\\), as "
                                  "incoming_keys of WrongParameters say: ")));
  EXPECT_THAT(fault("", "NoMethod"), HasSubstr("NoMethod has no method on_iteration_end"));
}

DataMap batch_of_two() {
  DataMap data = map_of("logits", at::arange(6, at::kFloat).reshape({2, 3}));
  data.put("names", std::vector<std::string>{"one", "two"});
  return data;
}

TEST(PythonCallback, A_saver_gets_each_sample_with_its_name) {
  const tests::TemporaryFolder folder;
  CallbacksHandler handler = handler_of("Texts", {"logits", "_mask", "_names", "_save_names"},
                                        {.log_dir = folder.path()}, R"({"save_suffix": "-x"})");
  handler.begin();
  DataMap data = batch_of_two();
  data.put("mask", at::zeros({7, 2}));
  handler.on_iteration_end(data);
  data.put("save_names", std::vector<std::string>{"a/b", "c"});
  handler.context().iteration_info.iteration_number = 1;
  handler.on_iteration_end(data);
  handler.end();
  const auto text = [&](const std::string& name) {
    return files::read(folder.path() / "text" / (name + "-x.json"));
  };
  const std::string first = R"({"logits": [0.0, 1.0, 2.0], "mask": [7, 2], "names": "one"})";
  const std::string second = R"({"logits": [3.0, 4.0, 5.0], "mask": [7, 2], "names": "two"})";
  EXPECT_EQ(text("epoch_00000_iter_000000_rank_000_sample_00000"), first);
  EXPECT_EQ(text("epoch_00000_iter_000000_rank_000_sample_00001"), second);
  EXPECT_EQ(text("a/b"), first);
  EXPECT_EQ(text("c"), second);
  EXPECT_EQ(files::read(folder.path() / "num_samples"), "4");
  data.put("save_names", std::vector<std::string>{"../b", "c"});
  EXPECT_THAT(fault_of([&] { handler.on_iteration_end(data); }),
              AllOf(StartsWith("65 "), HasSubstr("'../b' is not a valid name")));
}

/// Sums of x that a buffer of this kind gives, each as its numbers.
std::vector<std::vector<double>> sums_of(const std::string& args, std::vector<std::string>* seen) {
  CallbacksHandler handler = handler_of("Kept", {"x", "_names", "_evaluate"}, {}, args);
  handler.begin();
  std::vector<std::vector<double>> sums;
  for (int i = 0; i < 4; ++i) {
    DataMap data = map_of("x", at::arange(4, at::kFloat).reshape({2, 2}) + 10 * i);
    data.put("names", std::vector<std::string>{"a" + std::to_string(i), "b" + std::to_string(i)});
    if (i % 2 == 1) data.put("evaluate", at::ones({}, at::kBool));
    const DataMap all = handler.on_iteration_end(data);
    EXPECT_EQ(all.contains("sum_of_x"), i % 2 == 1);
    if (!all.contains("sum_of_x")) continue;
    const at::Tensor sum = all.tensor("sum_of_x").to(at::kDouble).contiguous();
    sums.emplace_back(sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel());
    *seen = all.texts("seen");
  }
  return sums;
}

TEST(PythonCallback, A_buffer_processes_its_samples_when_told_to_evaluate) {
  std::vector<std::string> seen;
  using Sums = std::vector<std::vector<double>>;
  // Rows (0, 1) and (2, 3), and 10 more in each iteration.
  EXPECT_EQ(sums_of("{}", &seen), (Sums{{24, 28}, {104, 108}}));
  EXPECT_EQ(seen, (std::vector<std::string>{"a2", "b2", "a3", "b3"}));
  EXPECT_EQ(sums_of(R"({"buffer": 3})", &seen), (Sums{{24, 27}, {84, 87}}));
  EXPECT_EQ(seen, (std::vector<std::string>{"b2", "a3", "b3"}));
  EXPECT_EQ(sums_of(R"({"buffer": "stats"})", &seen), (Sums{{24, 28}, {104, 108}}));
  EXPECT_EQ(seen, (std::vector<std::string>{"count", "maximum", "mean", "minimum", "variance"}));
}

/// KPIs of two ranks that see `logits` and all-zero targets; the sums are doubled.
std::map<std::string, double> kpis_of(const std::string& fault_name) {
  std::map<std::string, double> kpis;
  coord::Services services;
  services.sum_over_ranks = [](std::span<double> numbers) {
    for (double& number : numbers) number *= 2;
  };
  services.set_kpi = [&](const std::string& name, double value) { kpis[name] = value; };
  std::vector<coord::NamedCallback> callbacks;
  callbacks.push_back(
      {"mine", make_python_callback(python_args("callbacks.py", "ShareRight",
                                                R"({"fault": ")" + fault_name + R"("})"),
                                    "callbacks.mine", services)});
  CallbacksHandler handler(std::move(callbacks), {"logits", "targets"}, {.mode = Mode::kEval});
  handler.begin();
  for (const double scale : {1.0, -1.0, 1.0, 1.0}) {
    handler.on_iteration_start();
    DataMap data = map_of("logits", at::eye(4).slice(0, 0, 2) * scale);
    data.put("targets", at::zeros({2}, at::kLong));
    handler.on_iteration_end(data);
  }
  handler.end();
  return kpis;
}

TEST(PythonCallback, Kpis_are_the_values_of_sums_over_iterations_and_ranks) {
  const std::map<std::string, double> kpis = kpis_of("");
  ASSERT_EQ(kpis.size(), 2U);
  // The first of two samples is right; with the sign turned, the second: its first output is 0.
  EXPECT_DOUBLE_EQ(kpis.at("share_right"), 0.5);
  const double e = std::exp(1.0);
  EXPECT_NEAR(kpis.at("mean_probability"), (3 * (e / (e + 3)) + 1 / (1 / e + 3)) / 4, 1e-6);
}

TEST(PythonCallback, Tells_what_is_wrong_with_savers_buffers_and_kpis) {
  const auto of_kpi = [](const std::string& fault_name) {
    return fault_of([&] { (void)kpis_of(fault_name); });
  };
  EXPECT_THAT(of_kpi("num_sums"),
              HasSubstr("num_sums of ShareRight is 2.5; it must be a whole number above 0"));
  EXPECT_THAT(of_kpi("keys"), HasSubstr("remove generated_keys"));
  EXPECT_THAT(of_kpi("count"), ContainsRegex("callbacks.py:[0-9]+: ShareRight.sums returned 2 "
                                             "numbers, and num_sums is 3"));
  EXPECT_THAT(of_kpi("kind"), HasSubstr("ShareRight.sums returned int, not a list of numbers"));
  EXPECT_THAT(of_kpi("values"), HasSubstr("not a dict of numbers by name"));
  EXPECT_THAT(of_kpi("number"), AllOf(StartsWith("78 "), HasSubstr("{'share_right': 'half'}")));
  const auto of = [](const std::string& name, const std::string& args) {
    return fault_of([&] { (void)made(name, args); });
  };
  EXPECT_THAT(of("TwoKinds", "{}"), HasSubstr("has the methods save_sample and sums: keep one"));
  EXPECT_THAT(of("Kept", R"({"buffer": 0})"),
              HasSubstr("it must be 'list', 'stats' or a whole number above 0"));
  EXPECT_THAT(of("Kept", R"({"gather": "yes"})"), HasSubstr("it must be True or False"));
  EXPECT_THAT(of("Texts", R"({"stores_as": 3})"), HasSubstr("is 3; it must be a string"));
}

std::vector<coord::WantedCallback> read_section(const std::string& text) {
  Diagnostics faults;
  YamlDocument document = YamlDocument::parse("test", text, &faults);
  ConfigReader in(document.root(), "", document, &faults);
  if (coord::callback_types().find("python") == nullptr)
    coord::callback_types().add(python_callback_type());
  std::vector<coord::WantedCallback> wanted = coord::read_callbacks(in.section("callbacks"));
  faults.throw_if_any("config");
  return wanted;
}

TEST(PythonCallback, Args_of_its_section_go_to_the_constructor) {
  const std::string path = python_args("callbacks.py", "Verdict").path;
  const auto fault_of_section = [&](const std::string& more) {
    return fault_of([&] {
      (void)make_callbacks(read_section("callbacks: {mine: {type: python, path: " + path +
                                        ", name: Verdict, " + more + "}}"),
                           Mode::kInfer, {});
    });
  };
  EXPECT_EQ(fault_of_section("args: {min_probability: 0.9}"), "nothing");
  EXPECT_THAT(fault_of_section("args: {min_probabilty: 0.9}"),
              AllOf(StartsWith("78 "),
                    HasSubstr("Verdict(min_probabilty=0.9), as 'callbacks.mine.args' says: "),
                    HasSubstr("unexpected keyword argument 'min_probabilty'")));
  EXPECT_THAT(
      fault_of_section("min_probability: 0.9"),
      AllOf(StartsWith("78 "), HasSubstr("unknown key 'min_probability' in 'callbacks.mine'")));
}

}  // namespace python_callback_test
}  // namespace lockstep::python
