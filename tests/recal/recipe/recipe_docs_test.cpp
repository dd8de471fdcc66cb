// Every YAML block of docs/recipe.md must load, and every modifier there is must have one.
#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include "base/files/files.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace recipe_docs_test {

std::vector<std::string> yaml_blocks(const std::string& text) {
  const std::string open = "\n```yaml\n";
  std::vector<std::string> blocks;
  for (size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
    const size_t begin = at + open.size();
    blocks.push_back(text.substr(begin, text.find("\n```", begin) + 1 - begin));
  }
  return blocks;
}

std::string page() { return files::read(LOCKSTEP_SOURCE_DIR "/docs/recipe.md"); }

/// The page's text on one modifier: from its heading to the next.
std::string section_on(const std::string& tag) {
  const std::string text = page();
  const size_t begin = text.find("\n### `!" + tag + "`");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find("\n##", begin + 1) - begin);
}

/// The keys that a modifier's reader knows, as it lists them to who gives it another one.
std::vector<std::string> keys_of(const std::string& tag) {
  const std::string fault = faults_of(recipe_of({"!" + tag + " {qqqqqqqqqqqqqqqqqqqq: 1}"}));
  const std::string before = "; available: ";
  const size_t at = fault.find(before);
  EXPECT_NE(at, std::string::npos) << fault;
  std::istringstream list(fault.substr(at + before.size()));
  std::vector<std::string> keys;
  for (std::string key; std::getline(list, key, ',') && list;)
    keys.push_back(key.substr(key.find_first_not_of(' ')));
  return keys;
}

bool is_bound(const std::string& key) {
  return key == "start_epoch" || key == "start_step" || key == "end_epoch" || key == "end_step";
}

TEST(RecipeDocs, EveryExampleLoadsAndCompiles) {
  std::set<std::string> tags;
  for (const std::string& block : yaml_blocks(page())) {
    const bool whole = block.starts_with("version:");
    const Recipe recipe = good_recipe(whole ? block : "version: 1.0.0\nmodifiers:\n" + block);
    EXPECT_FALSE(recipe.empty()) << block;
    Diagnostics faults;
    const Timeline timeline = Timeline::compile(recipe, {.steps_per_epoch = 50}, &faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
    EXPECT_TRUE(timeline.warnings().empty()) << timeline.warnings().front();
    for (const auto& modifier : recipe.modifiers()) tags.emplace(modifier->tag());
  }
  std::vector<std::string> wanted = modifier_kinds().names();
  wanted.insert(wanted.end(), {"GMPruningModifier", "GlobalMagnitudePruningModifier"});
  EXPECT_THAT(tags, ::testing::UnorderedElementsAreArray(wanted));
}

TEST(RecipeDocs, EveryKeyOfEveryModifierIsDescribed) {
  for (const std::string& tag : modifier_kinds().names()) {
    const std::string section = section_on(tag);
    if (section.empty()) {
      ADD_FAILURE() << "docs/recipe.md has no section '### `!" << tag
                    << "`' that describes its keys";
      continue;
    }
    const std::vector<std::string> keys = keys_of(tag);
    EXPECT_GE(keys.size(), 4U) << tag;
    for (const std::string& key : keys) {
      const std::string shown = is_bound(key) ? key.substr(0, key.find('_')) : "`" + key + "`";
      EXPECT_THAT(section, ::testing::HasSubstr(shown)) << "docs/recipe.md, section of " << tag;
    }
  }
}

}  // namespace recipe_docs_test
}  // namespace lockstep::recal
