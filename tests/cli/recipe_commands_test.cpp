// `lockstep plan` into files, and `lockstep new recipe`.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "cli/new_project.h"
#include "daemon/run/check.h"
#include "support/temporary_folder.h"

namespace lockstep::cli {
namespace recipe_commands_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(NewRecipe, WritesWhatPlanReads) {
  const tests::TemporaryFolder folder;
  const std::string path = (folder.path() / "recipe.yaml").string();
  EXPECT_THAT(new_recipe_command(path).text, HasSubstr("lockstep plan " + path));
  EXPECT_EQ(files::read(path), new_recipe_command("").text);
  const std::string plan = daemon::plan_command({.file = path, .steps_per_epoch = 10}).text;
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
    EXPECT_THAT(fault.what(), HasSubstr(path + " already exists"));
  }
  EXPECT_EQ(files::read(path), "mine");
}

TEST(Plan, WritesItsTables) {
  const tests::TemporaryFolder folder;
  const std::string recipe = (folder.path() / "recipe.yaml").string();
  (void)new_recipe_command(recipe);
  const std::string csv = (folder.path() / "plan.csv").string();
  const std::string json = (folder.path() / "plan.json").string();
  (void)daemon::plan_command(
      {.file = recipe, .steps_per_epoch = 10, .csv_file = csv, .json_file = json});
  const std::string table = files::read(csv);
  EXPECT_THAT(table, StartsWith("step,epoch,modifier,event,params,value\n"));
  EXPECT_GT(std::count(table.begin(), table.end(), '\n'), 5) << "rows, not the head alone";
  EXPECT_EQ(nlohmann::json::parse(files::read(json))["total_steps"], 300);
}

/// The code and text with which a plan is refused.
std::pair<ExitCode, std::string> refusal_of(const daemon::PlanOptions& options) {
  try {
    (void)daemon::plan_command(options);
  } catch (const Error& fault) {
    return {fault.code(), fault.what()};
  }
  return {ExitCode::kBug, "it was not refused"};
}

TEST(Plan, ManyStepsPerEpochAreAFaultOfTheCommandLine) {
  const std::string recipe = LOCKSTEP_SOURCE_DIR "/configs/prune_all.yaml";
  for (const int64_t steps : {int64_t{0}, int64_t{2'000'000'000}}) {
    const auto [code, text] = refusal_of({.file = recipe, .steps_per_epoch = steps});
    EXPECT_EQ(code, ExitCode::kUsage);
    EXPECT_THAT(
        text, HasSubstr(fmt::format("--steps-per-epoch is {}, it must be 1 to 1000000000", steps)));
  }
  EXPECT_THAT(daemon::plan_command({.file = recipe, .steps_per_epoch = 1'000'000'000}).text,
              HasSubstr("25 epochs, 25000000000 steps"));
}

TEST(Plan, OfOneStage) {
  const std::string recipe = LOCKSTEP_SOURCE_DIR "/tests/recal/recipes/stages_in_turn.yaml";
  EXPECT_THAT(daemon::plan_command({.file = recipe, .steps_per_epoch = 10}).text,
              HasSubstr("100 steps"));
  EXPECT_THAT(
      daemon::plan_command({.file = recipe, .steps_per_epoch = 10, .stage = "recover_stage"}).text,
      HasSubstr("40 steps"));
  EXPECT_EQ(refusal_of({.file = recipe, .steps_per_epoch = 10, .stage = "none"}).first,
            ExitCode::kConfig);
  EXPECT_EQ(refusal_of({.file = LOCKSTEP_SOURCE_DIR "/configs/digits.yaml", .stage = "a"}).first,
            ExitCode::kUsage);
}

TEST(Plan, APathThatIsNoUtf8DoesNotEndIt) {
  const tests::TemporaryFolder folder;
  const std::string recipe = (folder.path() / "recipe\xff.yaml").string();
  (void)new_recipe_command(recipe);
  const std::string json = (folder.path() / "plan.json").string();
  (void)daemon::plan_command({.file = recipe, .steps_per_epoch = 10, .json_file = json});
  EXPECT_EQ(nlohmann::json::parse(files::read(json))["total_steps"], 300);
}

}  // namespace recipe_commands_test
}  // namespace lockstep::cli
