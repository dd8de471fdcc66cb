// `lockstep plan` into files, and `lockstep new recipe`.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "daemon/commands.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(NewRecipe, WritesWhatPlanReads) {
  const tests::TemporaryFolder folder;
  const std::string path = (folder.path() / "recipe.yaml").string();
  EXPECT_THAT(new_recipe_command(path).text, HasSubstr("lockstep plan " + path));
  EXPECT_EQ(files::read(path), new_recipe_command("").text);
  const std::string plan = plan_command({.file = path, .steps_per_epoch = 10}).text;
  EXPECT_THAT(plan, HasSubstr("the run has 30 epochs, 300 steps"));
  EXPECT_THAT(plan, ::testing::Not(HasSubstr("warning")));
}

TEST(NewRecipe, KeepsAFileThatIsThere) {
  const tests::TemporaryFolder folder;
  const std::string path = (folder.path() / "recipe.yaml").string();
  files::write_atomically(path, "mine");
  try {
    (void)new_recipe_command(path);
    FAIL() << "it wrote over a file";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kCannotCreate);
    EXPECT_THAT(fault.what(), HasSubstr(path + " is there already"));
  }
  EXPECT_EQ(files::read(path), "mine");
}

TEST(Plan, WritesItsTables) {
  const tests::TemporaryFolder folder;
  const std::string recipe = (folder.path() / "recipe.yaml").string();
  (void)new_recipe_command(recipe);
  const std::string csv = (folder.path() / "plan.csv").string();
  const std::string json = (folder.path() / "plan.json").string();
  (void)plan_command({.file = recipe, .steps_per_epoch = 10, .csv_file = csv, .json_file = json});
  EXPECT_THAT(files::read(csv), StartsWith("step,epoch,modifier,event,params,value\n"));
  EXPECT_EQ(nlohmann::json::parse(files::read(json))["total_steps"], 300);
}

}  // namespace
}  // namespace lockstep::daemon
