// Timeline of modifiers that distil, and their refusals.
#include <gmock/gmock.h>

#include "tests/recal/modifiers/timeline_events.h"

namespace lockstep::recal {
namespace distillation_modifier_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::events;

constexpr const char* kLength = "!EpochRangeModifier {start_epoch: 0, end_epoch: 6}";

Timeline with_teacher(const std::vector<std::string>& items, TeacherChoice teacher,
                      Diagnostics* faults) {
  return Timeline::compile(good_recipe(recipe_of(items)),
                           {.steps_per_epoch = 10, .params = small_network(), .teacher = teacher},
                           faults);
}

Timeline distilling(const std::vector<std::string>& items) {
  Diagnostics faults;
  Timeline timeline = with_teacher(items, TeacherChoice::kGiven, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return timeline;
}

std::string refusal(TeacherChoice teacher) {
  Diagnostics faults;
  (void)with_teacher({"!DistillationModifier {}", kLength}, teacher, &faults);
  return brief(faults);
}

TEST(Distillation, LastsTheWholeRunWithSparseMLsDefaults) {
  const Timeline timeline = distilling({"!DistillationModifier {}", kLength});
  EXPECT_THAT(events(timeline),
              ElementsAre("0 temperature 2 of distillation", "0 distil with hardness 0.5"));
  EXPECT_DOUBLE_EQ(timeline.distillation_at(0)->hardness, 0.5);
  EXPECT_DOUBLE_EQ(timeline.distillation_at(59)->temperature, 2);
}

TEST(Distillation, ModifiersFollowEachOtherInAnyOrder) {
  const Timeline timeline = distilling(
      {"!DistillationModifier {start_epoch: 2, end_epoch: 3, hardness: 1.0, temperature: 5.5}",
       "!DistillationModifier {start_epoch: 1, end_epoch: 2, hardness: 0.25}", kLength});
  EXPECT_FALSE(timeline.distillation_at(9).has_value());
  EXPECT_DOUBLE_EQ(timeline.distillation_at(19)->hardness, 0.25);
  EXPECT_DOUBLE_EQ(timeline.distillation_at(20)->hardness, 1);
  EXPECT_DOUBLE_EQ(timeline.distillation_at(29)->temperature, 5.5);
  EXPECT_FALSE(timeline.distillation_at(30).has_value());
}

TEST(Distillation, TwoAtOneStepAreRefused) {
  Diagnostics faults;
  (void)with_teacher(
      {"!DistillationModifier {}", "!DistillationModifier {start_epoch: 2, end_epoch: 3}", kLength},
      TeacherChoice::kGiven, &faults);
  EXPECT_THAT(brief(faults), HasSubstr("both write the distillation loss at step 20"));
}

TEST(Distillation, NeedsATeacher) {
  EXPECT_THAT(refusal(TeacherChoice::kNone),
              HasSubstr("DistillationModifier needs a teacher: set train.distill_teacher"));
  EXPECT_THAT(refusal(TeacherChoice::kNoLoss), HasSubstr("in a loop of your own"));
  EXPECT_EQ(refusal(TeacherChoice::kGiven), "");
}

TEST(Distillation, CanBeDisabled) {
  Diagnostics faults;
  const Timeline timeline = with_teacher({"!DistillationModifier {hardness: 1.0}", kLength},
                                         TeacherChoice::kDisabled, &faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_FALSE(timeline.has(ActionKind::kDistill));
  EXPECT_FALSE(timeline.distillation_at(0).has_value());
  EXPECT_THAT(timeline.warnings(),
              ElementsAre(HasSubstr("train.distill_teacher is disable: the loss is that")));
}

TEST(Distillation, ATeacherWithoutModifierIsNoted) {
  EXPECT_THAT(distilling({kLength}).warnings(),
              ElementsAre(HasSubstr("train.distill_teacher has no effect")));
}

TEST(Distillation, KeysWithoutMeaningHere) {
  const Timeline timeline = distilling(
      {"!DistillationModifier {distill_output_keys: [start_logits, end_logits]}", kLength});
  EXPECT_THAT(timeline.notes().front(), HasSubstr("distill_output_keys has no effect"));
  const auto faults = [](const std::string& key) {
    return faults_of(recipe_of({"!DistillationModifier {" + key + "}"}));
  };
  EXPECT_EQ(faults("teacher_input_keys: [], update_frequency: -1.0"), "");
  EXPECT_THAT(faults("teacher_input_keys: [a]"), HasSubstr("may only be [] or omitted"));
  EXPECT_THAT(faults("update_frequency: 0.5"), HasSubstr("may only be -1"));
  EXPECT_THAT(faults("hardness: 1.5"), HasSubstr("hardness"));
  EXPECT_THAT(faults("temperature: 0"), HasSubstr("temperature"));
  EXPECT_THAT(faults_of(recipe_of({"!OutputDistillationModifier {comparison: square_head}"})),
              HasSubstr("outputs of the whole network are compared"));
}

TEST(Distillation, IsPartOfTheTimelinesText) {
  const auto text = [](const std::string& hardness) {
    return distilling(
               {"!DistillationModifier {start_epoch: 1, hardness: " + hardness + "}", kLength})
        .canonical_text();
  };
  EXPECT_THAT(timeline_changes(text("0.5"), text("0.75"), 0),
              ElementsAre("step 10: distil of the loss: 0.5 in the checkpoint, 0.75 now"));
}

}  // namespace distillation_modifier_test
}  // namespace lockstep::recal
