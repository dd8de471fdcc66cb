#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include "base/files.h"
#include "recal/timeline_svg.h"
#include "recal/timeline_text.h"
#include "recipes.h"

namespace lockstep::recal {
namespace {

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
          "      ...              3  (27 more like these)\n"));  // 32 updates, 5 of them shown,
                                                                 // before the rate changes at 460
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
  Faults faults;
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

TEST(PlanSvg, ARecipeWithoutEndOrActionsStillDraws) {
  EXPECT_THAT(
      plan_svg(
          compiled(recipe_of({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.2}"}),
                   10),
          "t"),
      HasSubstr("</svg>"));
  EXPECT_THAT(plan_svg(compiled("version: 1.0.0\nmodifiers: []\n", 10), "t"), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace lockstep::recal
