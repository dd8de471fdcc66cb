// Content of a run's files about its recipe.
#include "train/recorder.h"

#include <gtest/gtest.h>

#include "base/files/files.h"
#include "dist/communicator.h"
#include "small_run.h"
#include "support/temporary_folder.h"

namespace lockstep::train {
namespace recorder_test {

/// The bytes of the only TensorBoard file in a run's folder, which hold each tag as plain text.
std::string event_file_of(const std::filesystem::path& folder, const char* mode) {
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(folder / mode))
    if (entry.path().filename().string().starts_with("events.out.tfevents"))
      bytes += files::read(entry.path());
  return bytes;
}

/// A tag as in a record: its length, then its bytes.
bool holds_tag(const std::string& bytes, const std::string& tag) {
  return bytes.find(static_cast<char>(tag.size()) + tag) != std::string::npos;
}

/// Trains three steps under the recipe and gives what the event file and the metrics page hold.
struct Recorded {
  std::string events, page, weight, bias;
};
Recorded record(const std::vector<std::string>& items) {
  const tests::TemporaryFolder folder;
  dist::SelfCommunicator alone;
  tests::SmallRunOptions options;
  options.recipe = "version: 1.0.0\nmodifiers:\n";
  for (const std::string& item : items) options.recipe += "  - " + item + "\n";
  tests::SmallRun run(alone, options);
  metrics::TrainingMetrics metrics({.modifiers = recal::modifier_names(run.recipe.timeline()),
                                    .param_groups = {"weights", "other"}});
  metrics::Health health;
  {
    Recorder recorder({.summary = {.save_summary_steps = 1, .progress_s = 0},
                       .project_dir = folder.path(),
                       .node = "here",
                       .total_steps = 3},
                      run.recipe, metrics, health);
    for (int step = 0; step < 3; ++step) {
      const StepReport report = run.step();
      recorder.after_step({.step = report.step, .report = &report});
    }
    recorder.flush();
  }  // its end waits for the event files
  Recorded recorded{event_file_of(folder.path(), "train"), metrics.page(), "", ""};
  for (const Param& param : run.model->params())
    (param.prunable ? recorded.weight : recorded.bias) = param.name;
  return recorded;
}

const std::string kGradual =
    "!GradualKSModifier {params: __ALL__, init_sparsity: 0.5, final_sparsity: 0.5, start_epoch: 0, "
    "end_epoch: 1, update_frequency: 1";

TEST(Recorder, EveryModifierHasItsCurvesByDefault) {
  const Recorded got =
      record({kGradual + "}", "!SetLearningRateModifier {start_epoch: 0, learning_rate: 0.1}",
              "!SetWeightDecayModifier {start_epoch: 0, weight_decay: 0.1}",
              "!TrainableParamsModifier {params: __ALL__}",
              "!SetParamModifier {params: ['re:.*bias'], val: 0, start_epoch: 0}"});
  for (const std::string& tag :
       {std::string("recal/learning_rate/weights"), std::string("recal/weight_decay/weights"),
        std::string("recal/1:GradualKSModifier/target_sparsity"),
        "recal/1:GradualKSModifier/" + got.weight + "/sparsity",
        "recal/4:TrainableParamsModifier/" + got.bias + "/trainable",
        "recal/5:SetParamModifier/" + got.bias + "/value", std::string("recal/sparsity")})
    EXPECT_TRUE(holds_tag(got.events, tag)) << tag;
  EXPECT_EQ(got.events.find("recipe/"), std::string::npos);
  // On the Prometheus page parameters have series of their own only where that is asked for.
  EXPECT_EQ(got.page.find("lockstep_layer_sparsity_ratio{"), std::string::npos);
}

TEST(Recorder, LogTypesDecideWhereSingleParametersAreShown) {
  const std::string series = "lockstep_layer_sparsity_ratio{";
  const Recorded everywhere = record({kGradual + ", log_types: __ALL__}"});
  EXPECT_TRUE(
      holds_tag(everywhere.events, "recal/1:GradualKSModifier/" + everywhere.weight + "/sparsity"));
  EXPECT_NE(everywhere.page.find(series), std::string::npos);
  const Recorded nowhere = record({kGradual + ", log_types: none}"});
  EXPECT_EQ(nowhere.events.find("/" + nowhere.weight + "/"), std::string::npos);
  EXPECT_TRUE(holds_tag(nowhere.events, "recal/1:GradualKSModifier/target_sparsity"));
  EXPECT_EQ(nowhere.page.find(series), std::string::npos);
}

TEST(Recorder, AnEvaluationIsInTheRecordTheCurvesAndThePage) {
  const tests::TemporaryFolder folder;
  dist::SelfCommunicator alone;
  tests::SmallRun run(alone, {});
  metrics::TrainingMetrics metrics({.param_groups = {"weights", "other"}});
  metrics::Health health;
  std::optional<Recorder> recorder;
  recorder.emplace(
      RecorderOptions{
          .summary = {}, .project_dir = folder.path(), .node = "here", .total_steps = 3},
      run.recipe, metrics, health);
  recorder->after_evaluation(7, {.loss = 0.5,
                                 .accuracy = 0.75,
                                 .num_samples = 4,
                                 .metrics = {{"top_2", at::scalar_tensor(0.875)},
                                             {"recall", at::tensor({0.25, 1.0})},
                                             {"many", at::zeros({101})},
                                             {"pairs", at::ones({2, 2}, at::kLong)}}});
  recorder->flush();
  recorder.reset();  // its end waits for the event files
  const std::string record = files::read(folder.path() / "train" / "evals.csv");
  EXPECT_EQ(
      record.substr(0, record.find("7,many,0,0")),
      "step,name,class,value\n7,loss,,0.5\n7,accuracy,,0.75\n7,top_2,,0.875\n7,recall,0,0.25\n"
      "7,recall,1,1\n");
  EXPECT_TRUE(record.ends_with("7,many,100,0\n"));
  const std::string events = event_file_of(folder.path(), "eval"), page = metrics.page();
  EXPECT_TRUE(holds_tag(events, "accuracy/eval"));
  EXPECT_TRUE(holds_tag(events, "top_2/eval"));
  EXPECT_TRUE(holds_tag(events, "recall/eval/1"));
  EXPECT_FALSE(holds_tag(events, "many/eval/1"));  // a series for each of many classes is too many
  EXPECT_NE(page.find("lockstep_validation_metric{metric=\"top_2\"} 0.875"), std::string::npos);
  EXPECT_NE(page.find("{class=\"1\",metric=\"recall\"} 1"), std::string::npos) << page;
  EXPECT_EQ(page.find("many"), std::string::npos);
}

}  // namespace recorder_test
}  // namespace lockstep::train
