#include "checkpoint/format/checkpoint_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace save_prefix_test {

using ::testing::HasSubstr;
using tests::save_small;
using tests::TemporaryFolder;

std::pair<ExitCode, std::string> verdict_on(const std::string& name, bool is_new = false) {
  try {
    is_new ? require_new_prefix(name) : require_save(name);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ExitCode::kDone, ""};
}

TEST(SavePrefix, WhatPeopleMistakeForASaveIsSaid) {
  const TemporaryFolder folder, empty;
  const std::string prefix = folder.prefix();
  for (const int64_t number : {1, 2, 10}) save_small({.prefix = prefix}, number);
  EXPECT_EQ(verdict_on(prefix + "-10").first, ExitCode::kDone);
  struct Case {
    std::string name;
    ExitCode code;
    std::string hint;
  };
  const std::vector<Case> cases = {
      {prefix + "-2.index", ExitCode::kUsage, "checkpoint without '.index': " + prefix + "-2"},
      {prefix + "-2.index.tmp", ExitCode::kUsage, "'.index.tmp': " + prefix + "-2"},
      {prefix + "-2.data-00000-of-00001", ExitCode::kUsage,
       "'.data-00000-of-00001': " + prefix + "-2"},
      {prefix + "-2.tmp", ExitCode::kUsage, "'.tmp': " + prefix + "-2"},
      {prefix, ExitCode::kInputMissing, "its number is missing; available: " + prefix + "-1, "},
      {prefix + "-3", ExitCode::kInputMissing, prefix + "-10"},
      {folder.path().string(), ExitCode::kUsage,
       "is a folder; name a checkpoint by folder, prefix"},
      {folder.path().string() + "/", ExitCode::kUsage, "is a folder"},
      {empty.path().string(), ExitCode::kUsage, "no checkpoints in"},
      {empty.prefix() + "-1", ExitCode::kInputMissing, "no checkpoints in"},
      {empty / "absent/model.ckpt-1", ExitCode::kInputMissing, "no folder"},
      {"", ExitCode::kUsage, "is not a checkpoint name"},
      {"surely-absent-here-1", ExitCode::kInputMissing, "not found"},
  };
  for (const Case& each : cases) {
    const auto [code, text] = verdict_on(each.name);
    EXPECT_EQ(code, each.code) << each.name << ": " << text;
    EXPECT_THAT(text, HasSubstr(each.hint)) << each.name;
  }
}

TEST(SavePrefix, NamesOfSavesToComeAreFileNames) {
  const TemporaryFolder folder;
  EXPECT_EQ(verdict_on(folder.prefix(), true).first, ExitCode::kDone);
  EXPECT_EQ(verdict_on("model.ckpt", true).first, ExitCode::kDone);
  for (const auto& [name, hint] : std::vector<std::pair<std::string, std::string>>{
           {folder.path().string(), "need a file name too"},
           {folder.path().string() + "/", "need a file name too"},
           {"", "need a file name too"},
           {"a/..", "need a file name too"},
           {folder.prefix() + ".index", "give 'model.ckpt'"},
           {folder.prefix() + ".tmp", "give 'model.ckpt'"},
           {folder / "m*", "reads as a pattern"}}) {
    const auto [code, text] = verdict_on(name, true);
    EXPECT_EQ(code, ExitCode::kUsage) << name;
    EXPECT_THAT(text, HasSubstr(hint)) << name;
  }
}

}  // namespace save_prefix_test
}  // namespace lockstep::checkpoint
