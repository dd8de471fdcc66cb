#include "python/python_types.h"

#include <thread>

#include <ATen/Functions.h>
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

std::unique_ptr<PythonCallback> made(const std::string& name, const std::string& args = "{}") {
  return std::make_unique<PythonCallback>(python_args("callbacks.py", name, args),
                                          "callbacks.mine");
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
              HasSubstr("incoming_keys of Bad must be a list of strings, not 'logits'"));
  EXPECT_THAT(fault("run_on"), HasSubstr("run_on of Bad is 'rank1'; available: 'rank0' and 'all'"));
  EXPECT_THAT(fault("attribute"),
              HasSubstr("Bad(...) sets mode, which Lockstep sets before each call"));
  EXPECT_THAT(fault("", "WrongParameters"),
              AllOf(StartsWith("78 "),
                    ContainsRegex("callbacks.py:[0-9]+: on_iteration_end\\(logits\\), as "
                                  "incoming_keys of WrongParameters say: ")));
  EXPECT_THAT(fault("", "NoMethod"), HasSubstr("NoMethod has no method on_iteration_end"));
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
