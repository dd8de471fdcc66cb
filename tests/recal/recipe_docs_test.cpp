// Every YAML block of docs/recipe.md must load, and every modifier there is must have one.
#include <gmock/gmock.h>

#include <set>

#include "base/files.h"
#include "recipes.h"

namespace lockstep::recal {
namespace {

std::vector<std::string> yaml_blocks(const std::string& text) {
  const std::string open = "\n```yaml\n";
  std::vector<std::string> blocks;
  for (size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
    const size_t begin = at + open.size();
    blocks.push_back(text.substr(begin, text.find("\n```", begin) + 1 - begin));
  }
  return blocks;
}

TEST(RecipeDocs, EveryExampleLoads) {
  std::set<std::string> tags;
  const std::vector<std::string> blocks =
      yaml_blocks(files::read(LOCKSTEP_SOURCE_DIR "/docs/recipe.md"));
  for (const std::string& block : blocks) {
    const bool whole = block.starts_with("version:");
    const Recipe recipe = good_recipe(whole ? block : "version: 1.0.0\nmodifiers:\n" + block);
    EXPECT_FALSE(recipe.empty()) << block;
    for (const auto& modifier : recipe.modifiers()) tags.emplace(modifier->tag());
  }
  EXPECT_EQ(tags,
            (std::set<std::string>{"ConstantKSModifier", "EpochRangeModifier", "GradualKSModifier",
                                   "LearningRateModifier", "SetLearningRateModifier"}));
}

}  // namespace
}  // namespace lockstep::recal
