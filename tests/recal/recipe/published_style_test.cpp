// Recipes in the form in which they are published elsewhere, as whole files: tests/recal/recipes.
#include <gmock/gmock.h>

#include "recal/recipe/recipe_reader.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace published_style_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A small network with the usual names.
TimelineInputs classifier() {
  TimelineInputs inputs{.steps_per_epoch = 10, .base_learning_rate = 1};
  inputs.params = std::vector<ParamInfo>();
  for (const std::string layer : {"input.conv", "sections.0.conv1", "sections.0.conv2",
                                  "sections.1.conv1", "classifier.fc"}) {
    const auto weight_param = static_cast<int64_t>(inputs.params->size());
    inputs.layers.push_back(
        {.name = layer, .weight_param = weight_param, .has_batch_norm = layer != "classifier.fc"});
    inputs.params->push_back({layer + ".weight", true, 100});
    inputs.params->push_back({layer + ".bias", false, 10});
  }
  return inputs;
}

Timeline compiled_file(const std::string& name) {
  Diagnostics faults;
  const Recipe recipe = load_recipe(LOCKSTEP_SOURCE_DIR "/tests/recal/recipes/" + name, &faults);
  Timeline timeline = Timeline::compile(recipe, classifier(), &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(timeline.warnings(), IsEmpty());
  return timeline;
}

TEST(PublishedStyle, Pruning) {
  const Timeline timeline = compiled_file("classification_prune.md");
  EXPECT_EQ(timeline.total_steps(), 600);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(0, 0), 0.05);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(10, 0), 0.125);  // half of the way from 0.05 to 0.2
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(20, 0), 0.2);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(600, 0), 0.00005);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(39), 0);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(40), 0.05);
  EXPECT_LT(timeline.target_sparsity_at(375), 0.85);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(376), 0.85);  // epoch 4 + 0.6 * 56 = 37.6
  EXPECT_THAT(timeline.param_sets()[0].names,
              ElementsAre("sections.0.conv1.weight", "sections.0.conv2.weight",
                          "sections.1.conv1.weight", "classifier.fc.weight"));
}

TEST(PublishedStyle, PruningAndQuantization) {
  const Timeline timeline = compiled_file("classification_prune_quantize.md");
  EXPECT_EQ(timeline.total_steps(), 250);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(99, 0), 0.1);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(100, 0), 0.1 * 0.1);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(200, 0), 0.1 / 3);
  EXPECT_EQ(timeline.weight_decay_at(0, 0), 1e-4);
  EXPECT_EQ(timeline.weight_decay_at(200, 0), 0.0);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(20), 0.05);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(150), 0.8);
  EXPECT_TRUE(timeline.param_sets()[0].mask_rule.global);
  EXPECT_EQ(timeline.param_sets()[0].mask_rule.kind.text(), "block4");
  EXPECT_FALSE(timeline.quantization_at(199).on);
  EXPECT_TRUE(timeline.quantization_at(200).on);
  EXPECT_THAT(timeline.quantization_at(200).layers, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(timeline.quantization_at(219).observers_on);
  EXPECT_FALSE(timeline.quantization_at(220).observers_on);
  EXPECT_TRUE(timeline.quantization_at(220).batch_norm_frozen);
}

TEST(PublishedStyle, SparseTransfer) {
  const Timeline timeline = compiled_file("transfer_sparse.yaml");
  EXPECT_EQ(timeline.total_steps(), 100);
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(25, 0), 0.01);  // a cycle is 2.5 epochs
  EXPECT_LT(timeline.learning_rate_at(24, 0), 0.0002);
  EXPECT_FALSE(timeline.trainable_at(0)[0]);
  EXPECT_FALSE(timeline.trainable_at(14)[1]);
  EXPECT_TRUE(timeline.trainable_at(0)[2]);
  EXPECT_TRUE(timeline.trainable_at(15)[0]);
  EXPECT_THAT(steps_of(timeline, ActionKind::kKeepZeros), ElementsAre(0));
}

}  // namespace published_style_test
}  // namespace lockstep::recal
