#include <gmock/gmock.h>

#include "recal/schedule/timeline.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace trainable_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string item(const std::string& more) { return "!TrainableParamsModifier {" + more + "}"; }

/// One letter a parameter: T or -.
std::string trained(const Timeline& timeline, int64_t step) {
  std::string letters;
  for (const bool trainable : timeline.trainable_at(step)) letters += trainable ? 'T' : '-';
  return letters;
}

TEST(Trainable, EverythingIsByDefault) {
  EXPECT_EQ(trained(compiled(recipe_of({item("params: __ALL__")}), 10), 0), "TTTTTT");
  EXPECT_EQ(trained(compiled(recipe_of({}) + "  []\n", 10), 5), "TTTTTT");
}

TEST(Trainable, ALayersNameMeansAllItsParameters) {
  const Timeline timeline =
      compiled(recipe_of({item("params: [head, blocks.0.conv.bias], trainable: false")}), 10);
  EXPECT_EQ(trained(timeline, 0), "T-TT--");
}

TEST(Trainable, ComesBackAtTheEnd) {
  const Timeline timeline = compiled(
      recipe_of({item("params: ['re:blocks.*'], trainable: false, start_epoch: 1, end_step: 25")}),
      10);
  EXPECT_EQ(trained(timeline, 9), "TTTTTT");
  EXPECT_EQ(trained(timeline, 10), "----TT");
  EXPECT_EQ(trained(timeline, 24), "----TT");
  EXPECT_EQ(trained(timeline, 25), "TTTTTT");
  EXPECT_THAT(steps_of(timeline, ActionKind::kSetTrainable), ElementsAre(10, 25));
}

TEST(Trainable, ExclusiveFreezesAllOthers) {
  const Timeline timeline =
      compiled(recipe_of({item("params: [head], exclusive: true, end_epoch: 2")}), 10);
  EXPECT_EQ(trained(timeline, 0), "----TT");
  EXPECT_EQ(trained(timeline, 20), "TTTTTT");
  EXPECT_THAT(faults_of(recipe_of({item("params: [head], exclusive: true, trainable: false")})),
              HasSubstr("'TrainableParamsModifier.exclusive' freezes all others, which needs "
                        "'trainable: true'"));
}

TEST(Trainable, EqualClaimsMayOverlap) {
  const Timeline timeline = compiled(
      recipe_of({item("params: [head], trainable: false, end_epoch: 2"),
                 item("params: __ALL__, trainable: true, start_epoch: 4"),
                 item("params: [head, blocks.1.conv], trainable: false, start_epoch: 1, end_epoch: "
                      "3")}),
      10);
  EXPECT_EQ(trained(timeline, 0), "TTTT--");
  EXPECT_EQ(trained(timeline, 10), "TT----");
  EXPECT_EQ(trained(timeline, 20), "TT----");  // the end of the first changes nothing yet
  EXPECT_EQ(trained(timeline, 30), "TTTTTT");
}

TEST(Trainable, ClaimsThatDiffer) {
  EXPECT_EQ(compile_faults({item("params: [head], trainable: false"),
                            item("params: [head.bias], start_epoch: 2, end_epoch: 3")}),
            "4:5: TrainableParamsModifier makes 'head.bias' trainable at step 20, "
            "TrainableParamsModifier (r.yaml:3) makes it frozen");
  EXPECT_EQ(compile_faults({item("params: [head], trainable: false, end_epoch: 2"),
                            item("params: [head.bias], start_epoch: 2")}),
            "");
  EXPECT_THAT(compile_faults({item("params: [head], exclusive: true"),
                              item("params: [blocks.0.conv], exclusive: true")}),
              HasSubstr("makes 'blocks.0.conv.weight' trainable at step 0"));
}

TEST(Trainable, SomethingMustBeLeftToTrain) {
  EXPECT_EQ(compile_faults({item("params: ['re:blocks'], trainable: false"),
                            item("params: [head], trainable: false, start_epoch: 1.5, end_epoch: "
                                 "3")}),
            "4:5: at step 15 nothing is left to train: TrainableParamsModifier freezes the last "
            "parameters");
  EXPECT_EQ(compile_faults({item("params: ['re:.*'], trainable: false")}),
            "3:5: at step 0 nothing is left to train: TrainableParamsModifier freezes the last "
            "parameters");
}

TEST(Trainable, WithoutAModelItIsListedAsWritten) {
  Diagnostics faults;
  const Recipe recipe = good_recipe(
      recipe_of({item("params: [a, b], trainable: false, start_epoch: 1, end_epoch: 2")}));
  const Timeline timeline = Timeline::compile(recipe, {.steps_per_epoch = 10}, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(steps_of(timeline, ActionKind::kSetTrainable), ElementsAre(10, 20));
  EXPECT_TRUE(timeline.trainable_at(15).empty());
}

TEST(Trainable, WhatIsFrozenAtTheStartStaysSoUntilAModifierSaysOtherwise) {
  TimelineInputs inputs{.steps_per_epoch = 10, .params = small_network()};
  inputs.frozen_at_start = {0, 1, 2, 3};
  const auto compile = [&](const std::string& text) {
    Diagnostics faults;
    Timeline timeline = Timeline::compile(good_recipe(text), inputs, &faults);
    EXPECT_EQ(faults.empty() ? "" : faults.text(), "");
    return timeline;
  };
  const Timeline plain = compile(recipe_of({}) + "  []\n");
  EXPECT_EQ(trained(plain, 0), "----TT");
  EXPECT_EQ(trained(plain, 30), "----TT");
  const Timeline thaws =
      compile(recipe_of({item("params: [blocks.1.conv], start_epoch: 1, end_epoch: 2"),
                         item("params: [blocks.0.conv], trainable: false, end_epoch: 1")}));
  EXPECT_EQ(trained(thaws, 9), "----TT");
  EXPECT_EQ(trained(thaws, 10), "--TTTT");
  EXPECT_EQ(trained(thaws, 20), "----TT");
}

TEST(Trainable, AnotherStartIsAnotherTimeline) {
  Diagnostics faults;
  TimelineInputs inputs{.steps_per_epoch = 10, .params = small_network()};
  const Recipe same = good_recipe(recipe_of({}) + "  []\n");
  const std::string all = Timeline::compile(same, inputs, &faults).canonical_text();
  inputs.frozen_at_start = {4};
  const std::string one = Timeline::compile(same, inputs, &faults).canonical_text();
  EXPECT_THAT(timeline_changes(all, one, 0),
              ElementsAre("frozen at start: nothing in the checkpoint, head.weight now"));
  EXPECT_THAT(timeline_changes(one, all, 0),
              ElementsAre("frozen at start: head.weight in the checkpoint, nothing now"));
}

}  // namespace trainable_test
}  // namespace lockstep::recal
