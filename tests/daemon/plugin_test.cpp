// Plug-ins as run files name them; tests/daemon/plugins/rows.cpp is the one that is opened.
#include <cstdlib>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/flags.h"
#include "cli/evaluator_job.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/run_config.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "estimator/open_plugin.h"
#include "metrics/step_metrics.h"
#include "support/temporary_folder.h"
#include "train/loss/loss.h"

namespace lockstep::daemon {
namespace plugin_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kRun =
    "run: {name: plugin}\ntrain: {max_steps: 1}\n"
    "data: {train: {type: random, shape: [3], classes: 4, samples: 8}, global_batch_size: 4}\n";

class Plugins : public ::testing::Test {
 protected:
  Plugins() { begin_job(); }  // the tables without rows of plug-ins

  /// A run file of kRun and more.
  std::string file(const std::string& more) {
    const auto path = folder_.path() / "run.yaml";
    files::write_atomically(path, kRun + more);
    return path.string();
  }

  /// The plug-in with one text replaced by another of the same length; next to the run file.
  std::string patched(const std::string& from, const std::string& to) {
    std::string bytes = files::read(LOCKSTEP_TEST_PLUGIN);
    EXPECT_EQ(from.size(), to.size());
    for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from))
      bytes.replace(at, from.size(), to);
    const auto path = folder_.path() / fmt::format("patched{}.so", num_patched_++);
    files::write_atomically(path, bytes);
    return path.string();
  }

  RunConfig load(const std::string& more, const std::vector<std::string>& words = {},
                 const std::string& estimator = "") {
    Diagnostics faults;
    RunConfig config = load_run_config(file(more), overrides_of({{}, estimator, words}), &faults);
    faults.throw_if_any("test");
    return config;
  }

  /// "78 text" of what reading the run file and building the run throws.
  std::string fault(const std::string& more, const std::vector<std::string>& words = {},
                    const std::string& estimator = "") {
    try {
      const RunConfig config = load(more, words, estimator);
      const TrainingContext context(config, alone_, alone_, alone_);
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
    return "no fault";
  }

  static std::string network(const std::string& more = "",
                             const std::string& path = LOCKSTEP_TEST_PLUGIN) {
    return "model: {type: plugin, path: '" + path + "', name: line" + more + "}\n";
  }
  static std::string estimator(const std::string& more,
                               const std::string& path = LOCKSTEP_TEST_PLUGIN) {
    return "estimator: {path: '" + path + "', " + more + "}\n";
  }

  const tests::TemporaryFolder folder_;
  int num_patched_ = 0;  // a file of one name is opened once
  dist::SelfCommunicator alone_;
};

TEST_F(Plugins, AFileIsLookedAtBeforeItsCodeRuns) {
  EXPECT_THAT(fault(network("", "gone.so")), HasSubstr("66 [plugin] gone.so: no such file"));
  EXPECT_THAT(fault(network("", "run.yaml")), HasSubstr("run.yaml: this file is not a plug-in"));
  EXPECT_THAT(fault(network("", patched("Lockstep 0.1.0", "Lockstep 0.0.9"))),
              AllOf(HasSubstr("78 "), HasSubstr("was built for Lockstep 0.0.9 with headers "),
                    HasSubstr("this program is Lockstep 0.1.0 with headers ")));
  const std::string bytes = files::read(LOCKSTEP_TEST_PLUGIN);
  const std::string stamp = bytes.substr(bytes.find("with headers "), 25);
  EXPECT_THAT(
      fault(network("", patched(stamp, "with headers 0123456789ab"))),
      AllOf(HasSubstr("78 "), HasSubstr("was built for Lockstep 0.1.0 with headers 01234567"),
            HasSubstr("this program is Lockstep 0.1.0 " + stamp + ", LibTorch 2.11")));
  EXPECT_THAT(fault(network("", patched("lockstep plug-in for", "some other thing for"))),
              HasSubstr("not a plug-in of Lockstep: its source needs LOCKSTEP_ESTIMATOR"));
  EXPECT_THAT(fault(network("", patched("lockstep_plugin_add_rows", "lockstep_plugin_add_cows"))),
              AllOf(HasSubstr("78 "), HasSubstr(".so: has no entry")));
  EXPECT_THAT(fault(network("", patched("\x7f"
                                        "ELF",
                                        "ELFE"))),
              AllOf(HasSubstr("78 "), HasSubstr(".so: cannot be opened")));
}

TEST_F(Plugins, WhatAPluginThrowsWhileItAddsRowsIsTold) {
  const std::string path = patched("no such thing", "no such thong");  // not opened before
  const auto fault_if = [&](const char* how) {
    ::setenv("LOCKSTEP_TEST_PLUGIN_FAILS", how, 1);
    std::string text = fault(network("", path));
    ::unsetenv("LOCKSTEP_TEST_PLUGIN_FAILS");
    return text;
  };
  EXPECT_THAT(fault_if("error"), AllOf(HasSubstr("65 [line] this data is bad"),
                                       HasSubstr("(thrown by plug-in " + path)));
  EXPECT_THAT(fault_if("exception"), HasSubstr("78 [plugin] plug-in " + path + ": no such thong"));
  EXPECT_THAT(fault_if("number"), HasSubstr("it threw an exception without a message"));
}

TEST_F(Plugins, ANetworkIsARowOfThePlugin) {
  const RunConfig config = load(network(", fails: ''"));
  const TrainingContext context(config, alone_, alone_, alone_);
  EXPECT_EQ(context.model->params()[0].tensor.sizes(), (std::vector<int64_t>{4, 3}));
  EXPECT_THAT(config.settings, Contains(HasSubstr("plugin " LOCKSTEP_TEST_PLUGIN " sha256=")));
  const std::string by_name = "plugins: [" LOCKSTEP_TEST_PLUGIN "]\nmodel: {type: line}\n";
  EXPECT_EQ(load(by_name).model.type, "line");
  files::write_atomically(folder_.path() / "copy.so", files::read(LOCKSTEP_TEST_PLUGIN));
  EXPECT_EQ(load(network("", "copy.so")).model.type, "plugin");  // found next to the run file
  const std::string wrong =
      fault("model: {type: plugin, path: " LOCKSTEP_TEST_PLUGIN ", name: lime}\n");
  EXPECT_THAT(wrong,
              AllOf(HasSubstr("78 "), HasSubstr("has no network 'lime' (did you mean 'line'?)")));
  EXPECT_THAT(fault(network(", failz: 1")),
              HasSubstr("unknown key 'failz' in 'model' (did you mean 'fails'?)"));
}

TEST_F(Plugins, WhatANetworkThrowsWhileItIsMadeIsTold) {
  EXPECT_THAT(fault(network(", fails: error")),
              AllOf(HasSubstr("65 [line] this data is bad"), HasSubstr("network line of ")));
  EXPECT_THAT(fault(network(", fails: exception")), HasSubstr("78 [plugin] network line of "));
  EXPECT_THAT(fault(network(", fails: torch")), AllOf(HasSubstr("78 "), HasSubstr("shape '[4, 4]'"),
                                                      Not(HasSubstr("Exception raised from"))));
  EXPECT_THAT(fault(network(", fails: number")), HasSubstr("78 "));
}

TEST_F(Plugins, AnEstimatorBringsWhatItHas) {
  const std::string own_data = estimator("name: full") + "model: null\n";
  RunConfig config = load(own_data, {"--samples", "6", "--deep"});
  EXPECT_EQ(config.model.type, "full");
  EXPECT_EQ(config.train.loss, "binary");
  EXPECT_EQ(config.hooks.size(), 1U);
  EXPECT_NE(metrics::step_metrics().find("plugin_steps"), nullptr);
  EXPECT_NO_THROW(load(own_data + "metrics: {listen: off}\neval: {metrics: [plugin_score]}\n"));
  EXPECT_EQ(config.model.make({{3}, 4, 1})->params()[0].tensor.size(0), 8);     // deep
  EXPECT_EQ(load(own_data + "metrics: {listen: off}\n").train.loss, "binary");  // read again
  config = load(estimator("name: bare"));
  EXPECT_EQ(config.train.loss, "auto");
  EXPECT_TRUE(config.hooks.empty());
}

double value_of_loss(const std::string& name) {
  return train::loss_types().find(name)->value(at::zeros({1, 2}), {}, {}).item<double>();
}

TEST_F(Plugins, RowsOfAnEstimatorAreThoseOfTheOneThatWasReadLast) {
  const std::string own = estimator("name: full, loss: mine") + "metrics: {listen: off}\n";
  EXPECT_EQ(load(own, {"--scale", "6"}).train.loss, "mine");
  EXPECT_EQ(value_of_loss("mine"), 6);
  EXPECT_EQ(load(own, {"--scale", "100"}).train.loss, "mine");
  EXPECT_EQ(value_of_loss("mine"), 100) << "the code of the first one, with its flags";
  EXPECT_THAT(
      fault(estimator("name: full, loss: cross_entropy")),
      AllOf(HasSubstr("78 "), HasSubstr("two rows have the name 'cross_entropy': one of ")));
}

TEST_F(Plugins, ANewJobSeesNoRowsOfTheJobBefore) {
  (void)load(estimator("name: full, loss: mine") + "metrics: {listen: off}\n");
  begin_job();
  EXPECT_EQ(train::loss_types().find("mine"), nullptr);
  EXPECT_EQ(metrics::step_metrics().find("plugin_steps"), nullptr);
  EXPECT_EQ(model::model_types().find("line"), nullptr);
  EXPECT_NE(model::model_types().find("mlp"), nullptr);
  EXPECT_TRUE(estimator::opened_plugins().empty());
  EXPECT_EQ(load("plugins: [" LOCKSTEP_TEST_PLUGIN "]\nmodel: {type: line}\n").model.type, "line");
}

TEST_F(Plugins, AFileThatWasBuiltAgainNeedsANewProcess) {
  const auto path = folder_.path() / "own.so";
  files::write_atomically(path, files::read(LOCKSTEP_TEST_PLUGIN) + "1");
  (void)load(network("", path.string()));
  begin_job();
  files::write_atomically(path, files::read(LOCKSTEP_TEST_PLUGIN) + "2");
  EXPECT_THAT(fault(network("", path.string())),
              AllOf(HasSubstr("69 [plugin] "), HasSubstr("restart the server")));
}

TEST_F(Plugins, AnEstimatorsDataStandWhereTheRunFileAsksForThem) {
  const std::vector<std::string> sets = {"data.train={type: estimator}"};
  const auto samples = [&](const std::string& more) {
    Diagnostics faults;
    const RunConfig config = load_run_config(file(more), overrides_of({.sets = sets}), &faults);
    faults.throw_if_any("test");
    return TrainingContext(config, alone_, alone_, alone_).train_data->num_samples();
  };
  EXPECT_EQ(samples(estimator("name: full, samples: 12")), 12);
  for (const auto& [more, words] :
       {std::pair<std::string, std::string>{estimator("name: bare"), "which has none"},
        {estimator("name: full, fails: input"), "estimator full of "},
        {"", "needs an estimator: give estimator.path"}})
    try {
      (void)samples(more);
      FAIL() << more;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
}

TEST_F(Plugins, FaultsOfAnEstimatorsSectionAreTold) {
  EXPECT_THAT(fault(estimator("name: full") + "model: {type: mlp}\n"),
              HasSubstr("remove 'model' or 'estimator'"));
  EXPECT_THAT(fault(estimator("name: fool")), HasSubstr("must be one of bare, full, not 'fool'"));
  EXPECT_THAT(fault(estimator("samples: 1")),
              HasSubstr("'estimator.name' must name one of: bare, full"));
  EXPECT_THAT(fault(estimator("name: full, samples: 0")),
              HasSubstr("'estimator.samples' is 0, it must be >= 1"));
  EXPECT_THAT(fault(estimator("name: full, sample: 1")), HasSubstr("unknown key 'sample'"));
  EXPECT_THAT(fault(estimator("name: full, fails: loss")), HasSubstr("65 [line] this data is bad"));
  EXPECT_THAT(fault(estimator("name: full, fails: model")),
              HasSubstr("model() returned no network"));
  EXPECT_THAT(fault(estimator("name: full, samples: null", "gone.so")),
              HasSubstr("66 [plugin] gone.so"));
}

TEST_F(Plugins, FlagsBehindTheDashesAreTyped) {
  const std::string run = "metrics: {listen: off}\n";
  const std::string library = LOCKSTEP_TEST_PLUGIN;
  EXPECT_THAT(
      fault(run, {"--sampels", "3"}, library),
      HasSubstr("64 [usage] unknown flag --sampels (did you mean '--samples'?); available: "));
  EXPECT_THAT(
      fault(estimator("name: full"), {"--samples", "many"}),
      AllOf(HasSubstr("78 "),
            HasSubstr("flag --samples:1:1: error: 'estimator.samples' must be a whole number")));
  EXPECT_THAT(fault(estimator("name: full"), {"samples"}),
              HasSubstr("64 [usage] flags of the estimator go after --"));
  EXPECT_THAT(fault(estimator("name: full"), {"--samples=3", "--deep=false", "--fails", "input"}),
              HasSubstr("train.loss binary does not support class numbers"));
}

TEST(Flags, AreCutOffTheCommandLine) {
  std::string words[] = {"lockstepd", "--config", "a", "--", "--width", "3", "--", "-x"};
  char* argv[8];
  for (size_t i = 0; i < 8; ++i) argv[i] = words[i].data();
  int argc = 8;
  EXPECT_EQ(take_flags(&argc, argv), (std::vector<std::string>{"--width", "3", "--", "-x"}));
  EXPECT_EQ(argc, 3);
  EXPECT_TRUE(take_flags(&argc, argv).empty());
  EXPECT_EQ(argc, 3);
  const std::vector<Override> flags = parse_flags({"--a", "-1", "--b", "--c=d=e", "--f", "g h"});
  ASSERT_EQ(flags.size(), 4U);
  EXPECT_EQ(flags[0].path + "=" + flags[0].value, "estimator.a=-1");
  EXPECT_EQ(flags[1].path + "=" + flags[1].value, "estimator.b=true");
  EXPECT_EQ(flags[2].path + "=" + flags[2].value, "estimator.c=d=e");
  EXPECT_EQ(flags[3].path + "=" + flags[3].value, "estimator.f=g h");
  EXPECT_THROW((void)parse_flags({"--"}), Error);
  EXPECT_EQ(overrides_of({.estimator = "it's: #1.so"})[0].value, "'it''s: #1.so'");
}

TEST_F(Plugins, ANetworkThatReadsFlagsIsEvaluated) {
  EXPECT_THAT(fault(estimator("name: full, fails: flag")), HasSubstr("read before the run begins"));
  const std::string run = file(estimator("name: full, samples: 12, fails: flag"));
  const cli::EvaluatorJob job(
      {.config_file = run,
       .above = {.sets = {"data.train={type: estimator}", "data.eval={type: estimator}"}}});
  EXPECT_TRUE(flags::are_frozen());
  EXPECT_EQ(flags::get<int64_t>("samples"), 12);
}

}  // namespace plugin_test
}  // namespace lockstep::daemon
