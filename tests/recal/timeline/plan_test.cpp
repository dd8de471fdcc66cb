#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "recal/schedule/timeline_views.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace plan_test {

using ::testing::HasSubstr;
using ::testing::Not;

std::string two_phases() {
  return recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 30}",
                    "!LearningRateModifier {start_epoch: 0, end_epoch: 30, lr_class: MultiStepLR, "
                    "lr_kwargs: {gamma: 0.3, milestones: [20, 26]}, init_lr: 0.1}",
                    "!GradualKSModifier {params: __ALL__, init_sparsity: 0.05, final_sparsity: "
                    "0.85, start_epoch: 4, end_epoch: 20, update_frequency: 0.5}"});
}

TEST(PlanText, ShowsModifiersInEpochsAndSteps) {
  const std::string text = plan_text(compiled(two_phases(), 23));
  EXPECT_THAT(text, HasSubstr("23 steps per epoch; the run has 30 epochs, 690 steps; learning rate "
                              "0.1 at the start\n"));
  EXPECT_THAT(
      text, HasSubstr("  #  modifier                    start      end      step   to step  what\n"
                      "  1  EpochRangeModifier              0       30         0       690  trains "
                      "to epoch 30\n"));
  EXPECT_THAT(text, HasSubstr("  3  GradualKSModifier               4       20        92       460 "
                              " prunes __ALL__ from 0.05 to 0.85 (cubic), every 0.5 epochs\n"));
}

TEST(PlanText, ShortensLongRunsOfEvents) {
  const std::string text = plan_text(compiled(two_phases(), 23));
  EXPECT_THAT(text, HasSubstr("       92     4.000    3  sparsity 0.050000 for 3 parameters\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "      ...              3  (28 more like these)\n"));  // 33 updates, 5 of them shown
  EXPECT_THAT(text, HasSubstr("      460    20.000    2  learning rate 0.03\n"
                              "      460    20.000    3  sparsity 0.850000 for 3 parameters\n"));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 25);
}

TEST(PlanText, ShortRunsStandInFull) {
  const std::string text = plan_text(
      compiled(recipe_of({"!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: "
                          "0.3, start_epoch: 0, end_epoch: 5, update_frequency: 1}"}),
               10));
  EXPECT_THAT(text, Not(HasSubstr("more like these")));
  EXPECT_THAT(
      text,
      HasSubstr(
          "       50     5.000    1  sparsity 0.300000 for head.weight (at the end of the run)\n"));
  EXPECT_THAT(text,
              HasSubstr("warning: r.yaml:3: GradualKSModifier: final_sparsity 0.3 is below 0.4"));
}

TEST(PlanText, WorksWithoutAModel) {
  Diagnostics faults;
  const Recipe recipe = good_recipe(two_phases());
  const Timeline timeline =
      Timeline::compile(recipe, {.steps_per_epoch = 23, .base_learning_rate = 0.1}, &faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_THAT(plan_text(timeline), HasSubstr("sparsity 0.050000 for __ALL__\n"));
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(690), 0.85);
}

TEST(PlotText, DrawsBothCurves) {
  const std::string text = plot_text(compiled(two_phases(), 23));
  EXPECT_THAT(text,
              HasSubstr("learning rate\n     0.1 |███████████████████████████████████████████\n"));
  EXPECT_THAT(text, HasSubstr("target sparsity\n    0.85 |"));
  EXPECT_THAT(text, HasSubstr("30 epochs\n"));
  EXPECT_EQ(plot_text(compiled(
                recipe_of({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.1}"}), 10)),
            "");
}

TEST(PlanSvg, IsADrawingWithBarsCurvesAndEvents) {
  const std::string svg = plan_svg(compiled(two_phases(), 23), "a <recipe> & more");
  EXPECT_THAT(svg, HasSubstr("a &lt;recipe&gt; &amp; more"));
  EXPECT_THAT(svg, HasSubstr("GradualKS: prunes __ALL__"));
  const auto count = [&](const std::string& part) {
    int num_found = 0;
    for (size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1))
      ++num_found;
    return num_found;
  };
  EXPECT_EQ(count("<circle"), 3 + 33 + 2);  // rates, mask updates, legends
  EXPECT_EQ(count("<rect"), 1 + 3);         // background, bars
  EXPECT_EQ(count("<svg"), 1);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf\"")));
  if (const char* path = std::getenv("LOCKSTEP_KEEP_SVG"); path != nullptr)
    files::write_atomically(path, svg);
}

TEST(PlanSvg, EachPruningModifierHasItsCurve) {
  const std::string svg = plan_svg(
      compiled(
          recipe_of({"!SetLearningRateModifier {start_epoch: 17.5, learning_rate: 0.02}",
                     "!GradualKSModifier {params: ['re:blocks'], init_sparsity: 0.05, "
                     "final_sparsity: 0.9, start_epoch: 2, end_epoch: 12, update_frequency: 1}",
                     "!GradualKSModifier {params: [head], init_sparsity: 0.2, final_sparsity: 0.6, "
                     "start_epoch: 10, end_epoch: 18, update_frequency: 0.25, inter_func: "
                     "inverse_cubic, leave_enabled: false}",
                     "!ConstantKSModifier {params: [head]}"}),
          23),
      "two pruning modifiers");
  EXPECT_THAT(svg, HasSubstr("modifier 2, updates"));
  EXPECT_THAT(svg, HasSubstr("modifier 3, updates"));
  if (const char* path = std::getenv("LOCKSTEP_KEEP_SVG"); path != nullptr)
    files::write_atomically(std::string(path) + ".2.svg", svg);
}

/// Everything that a plan can show.
Timeline all_kinds() {
  Diagnostics faults;
  const Recipe recipe = good_recipe(recipe_of(
      {"!EpochRangeModifier {start_epoch: 0, end_epoch: 30}",
       "!LearningRateFunctionModifier {start_epoch: 0, end_epoch: 3, lr_func: linear, init_lr: "
       "0.01, final_lr: 0.1}",
       "!SetLearningRateModifier {start_epoch: 26, learning_rate: 0.0005, param_groups: [1]}",
       "!GMPruningModifier {params: ['re:blocks'], init_sparsity: 0.05, final_sparsity: 0.9, "
       "start_epoch: 2, end_epoch: 18, update_frequency: 1, mask_type: [1, 4]}",
       "!TrainableParamsModifier {params: [head], trainable: false, end_epoch: 1.5}",
       "!QuantizationModifier {start_epoch: 22, disable_quantization_observer_epoch: 26}",
       "!SetWeightDecayModifier {start_epoch: 20, weight_decay: 0.0001}"}));
  Timeline timeline =
      Timeline::compile(recipe,
                        {.steps_per_epoch = 10,
                         .base_learning_rate = 0.3,
                         .params = small_network(),
                         .layers = {{"blocks.0.conv", 0}, {"blocks.1.conv", 2}, {"head", 4}}},
                        &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return timeline;
}

TEST(PlanText, ShortensEachModifiersEventsByThemselves) {
  const std::string pruning =
      ", init_sparsity: 0.05, final_sparsity: 0.9, start_epoch: 0, end_epoch: 20, "
      "update_frequency: 1}";
  const std::string text =
      plan_text(compiled(recipe_of({"!GradualKSModifier {params: [head]" + pruning,
                                    "!GradualKSModifier {params: ['re:blocks']" + pruning}),
                         10));
  EXPECT_THAT(text, HasSubstr("      ...              1  (16 more like these)\n"
                              "      ...              2  (16 more like these)\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
}

TEST(PlanText, SaysEveryKindOfEvent) {
  const std::string text = plan_text(all_kinds());
  for (const std::string event :
       {"        0     0.000    2  learning rate linear from 0.01 to 0.1\n",
        "        0     0.000    5  freeze 2 parameters\n",
        "       15     1.500    5  train 2 parameters\n",
        "      260    26.000    3  learning rate 0.0005 of parameter group 1\n",
        "      220    22.000    6  quantize 3 parameters\n",
        "      260    26.000    6  freeze the quantization ranges\n",
        "      200    20.000    7  weight decay 0.0001 of parameter group 0\n"})
    EXPECT_THAT(text, HasSubstr(event));
}

TEST(PlanText, TellsEventsThatComeTooLateFromThoseAtTheEnd) {
  const std::string text = plan_text(
      compiled(recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 5}",
                          "!SetLearningRateModifier {start_epoch: 9, learning_rate: 0.25}",
                          "!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: "
                          "0.8, start_epoch: 0, end_epoch: 9, update_frequency: 1}"}),
               10));
  EXPECT_THAT(text, HasSubstr("learning rate 0.25 (never: the run has ended)\n"));
  EXPECT_THAT(text, HasSubstr("sparsity 0.800000 for head.weight (at the end of the run)\n"));
  EXPECT_THAT(text, HasSubstr("never fires: it starts at step 90, the run has 90 steps"));
}

TEST(PlanText, HintsAtTheUpdateFrequencyWhereItPrunes) {
  EXPECT_THAT(plan_text(compiled(two_phases(), 23)),
              HasSubstr("hint: where the loss recovers soon after a mask, use a smaller "
                        "update_frequency (0.5: twice an epoch)"));
  EXPECT_THAT(
      plan_text(compiled(recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 5}"}), 23)),
      Not(HasSubstr("hint:")));
}

TEST(PlanSvg, HasAPanelForEachThingThatChanges) {
  const std::string svg = plan_svg(all_kinds(), "all kinds");
  for (const std::string heading :
       {"Learning rate", "rate of weights", "rate of the rest", "Target sparsity",
        "Weight decay that the recipe sets", "Trained parameters", "Quantized layers"})
    EXPECT_THAT(svg, HasSubstr(heading));
  EXPECT_THAT(svg, Not(HasSubstr("decay of the rest")));  // no modifier sets it
  const std::string other = plan_svg(compiled(two_phases(), 23), "t");
  for (const std::string heading : {"Weight decay", "Trained parameters", "Quantized layers"})
    EXPECT_THAT(other, Not(HasSubstr(heading)));
  if (const char* path = std::getenv("LOCKSTEP_KEEP_SVG"); path != nullptr)
    files::write_atomically(std::string(path) + ".3.svg", svg);
}

TEST(PlanCsv, HasARowForEachThingThatChanges) {
  const std::string csv = plan_csv(
      compiled(recipe_of({"!SetWeightDecayModifier {start_epoch: 1, weight_decay: 0}",
                          "!LearningRateFunctionModifier {start_epoch: 0, end_step: 2, lr_func: "
                          "linear, init_lr: 1, final_lr: 0}",
                          "!SetParamModifier {params: [head], val: 0.5, start_step: 1}"}),
               4));
  EXPECT_EQ(csv,
            "step,epoch,modifier,event,params,value\n"
            "0,0,2:LearningRateFunctionModifier,learning_rate,all,1\n"
            "1,0.25,2:LearningRateFunctionModifier,learning_rate,all,0.5\n"
            "1,0.25,3:SetParamModifier,set_param,head.weight head.bias,0.5\n"
            "2,0.5,2:LearningRateFunctionModifier,learning_rate,all,0\n"
            "4,1,1:SetWeightDecayModifier,weight_decay,0,0\n");
}

TEST(PlanCsv, QuotesWhatHoldsAComma) {
  Diagnostics faults;
  const Recipe recipe = good_recipe(recipe_of({"!ConstantKSModifier {params: [a, 're:\"b']}"}));
  EXPECT_THAT(plan_csv(Timeline::compile(recipe, {.steps_per_epoch = 4}, &faults)),
              HasSubstr("0,0,1:ConstantKSModifier,keep_zeros,\"[a, re:\"\"b]\",0\n"));
}

TEST(PlanJson, HoldsTheWholeTimeline) {
  const Timeline timeline = all_kinds();
  const nlohmann::json json = nlohmann::json::parse(plan_json(timeline));
  EXPECT_EQ(json["steps_per_epoch"], 10);
  EXPECT_EQ(json["total_steps"], 300);
  EXPECT_EQ(json["base_learning_rate"], 0.3);
  EXPECT_EQ(json["digest"], timeline.digest());
  EXPECT_EQ(json["modifiers"].size(), 7U);
  EXPECT_EQ(json["modifiers"][3]["tag"], "GMPruningModifier");
  EXPECT_EQ(json["modifiers"][3]["start"], "epoch 2");
  EXPECT_EQ(json["modifiers"][3]["end_step"], 180);
  EXPECT_EQ(json["modifiers"][5]["end"], nullptr);
  ASSERT_EQ(json["actions"].size(), timeline.actions().size());
  for (size_t i = 0; i < timeline.actions().size(); ++i) {
    EXPECT_EQ(json["actions"][i]["step"], timeline.actions()[i].step);
    EXPECT_EQ(json["actions"][i]["value"], timeline.actions()[i].value);
    EXPECT_EQ(json["actions"][i]["event"], traits_of(timeline.actions()[i].kind).name);
  }
  EXPECT_EQ(json["param_sets"][0]["mask_type"], "block4");
  EXPECT_EQ(json["param_sets"][0]["names"],
            (std::vector<std::string>{"blocks.0.conv.weight", "blocks.1.conv.weight"}));
  ASSERT_EQ(json["spans"].size(), 1U);
  EXPECT_EQ(json["spans"][0]["last_step"], 30);
  EXPECT_EQ(json["spans"][0]["shape"], "linear");
  EXPECT_EQ(json["spans"][0]["cycle_steps"], nullptr);
  EXPECT_TRUE(json["warnings"].empty());
}

TEST(PlanSvg, ARecipeWithoutEndOrActionsStillDraws) {
  EXPECT_THAT(
      plan_svg(
          compiled(recipe_of({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.2}"}),
                   10),
          "t"),
      HasSubstr("</svg>"));
  EXPECT_THAT(plan_svg(compiled("version: 1.0.0\nmodifiers: []\n", 10), "t"), HasSubstr("</svg>"));
}

}  // namespace plan_test
}  // namespace lockstep::recal
