#include "checkpoint/inspect.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/value_text.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using tests::SmallState;
using tests::TemporaryFolder;

ExitCode code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& fault) {
    return fault.code();
  }
  return ExitCode::kDone;
}

TEST(Inspect, ShowNamesEveryTensor) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 3, 2);
  const auto shown =
      nlohmann::json::parse(show_save(folder.path(), {.json = true, .values = true}).text);
  EXPECT_EQ(shown["num_shards"], 2);
  ASSERT_EQ(shown["tensors"].size(), 7U);
  for (const auto& tensor : shown["tensors"]) {
    if (tensor["key"] != "model/bias") continue;
    EXPECT_EQ(tensor["dtype"], "float64");
    EXPECT_EQ(tensor["shape"], nlohmann::json::array({7}));
    EXPECT_EQ(tensor["size"], 56);
    EXPECT_EQ(tensor["values"], nlohmann::json::array({3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(tensor["sha256"], Sha256().add(SmallState(3).bias).hex());
  }
  EXPECT_THAT(show_save(folder.prefix() + "-3", {}).text, HasSubstr("model/weight"));
}

TEST(Inspect, ValuesReadBackEqual) {
  EXPECT_EQ(json_values(at::full({1}, 0.1, at::kFloat)), "[0.1]");
  EXPECT_EQ(json_values(at::full({1}, 0.1, at::kDouble)), "[0.1]");
  EXPECT_EQ(json_values(at::full({1}, 1.0F / 3.0F, at::kFloat)), "[0.33333334]");
  EXPECT_EQ(json_values(at::full({1}, -0.0, at::kFloat)), "[-0.0]");
  EXPECT_EQ(json_values(at::full({1}, 1e30, at::kDouble)), "[1e+30]");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(json_values(at::full({1}, -infinity, at::kHalf)), "[\"-inf\"]");
  EXPECT_EQ(json_values(at::full({1}, 0.0, at::kDouble) / 0), "[\"nan\"]");
  EXPECT_EQ(json_values(at::full({2}, -5, at::kChar)), "[-5, -5]");
  EXPECT_EQ(json_values(at::ones({1}, at::kBool)), "[true]");
  EXPECT_EQ(json_values(at::zeros({0})), "[]");
  EXPECT_EQ(json_string("a\"\n"), R"("a\"\n")");
  EXPECT_EQ(json_string("\xff"), R"({"hex": "ff"})");
}

TEST(Inspect, ListAndLatestAndVerify) {
  TemporaryFolder folder;
  for (int64_t step : {9, 10}) tests::save_small({.prefix = folder.prefix()}, step, 2);
  EXPECT_EQ(latest_save(folder.path(), {}).text, folder.prefix() + "-10\n");
  EXPECT_EQ(nlohmann::json::parse(list_saves(folder.path(), {.json = true}).text).size(), 2U);
  EXPECT_TRUE(verify_saves(folder.path(), {}).ok);
  std::filesystem::resize_file(folder / "model.ckpt-10.data-00000-of-00002", 1);
  EXPECT_EQ(latest_save(folder.path(), {}).text, folder.prefix() + "-9\n");
  EXPECT_THAT(list_saves(folder.path(), {}).text, HasSubstr("truncated"));
  const Answer verdict = verify_saves(folder.path(), {});
  EXPECT_FALSE(verdict.ok);
  EXPECT_THAT(verdict.text, HasSubstr("model.ckpt-9: sound"));
  EXPECT_FALSE(nlohmann::json::parse(verify_saves(folder.path(), {.json = true}).text)[1]["defects"]
                   .empty());
}

TEST(Inspect, BadPlacesGetClearErrors) {
  TemporaryFolder folder;
  EXPECT_EQ(code_of([&] { latest_save(folder.path(), {}); }), ExitCode::kInputMissing);
  EXPECT_EQ(code_of([&] { list_saves(folder / "none", {}); }), ExitCode::kInputMissing);
  EXPECT_EQ(code_of([&] { show_save(folder / "none-3", {}); }), ExitCode::kInputMissing);
  EXPECT_EQ(code_of([&] { show_save(folder / "m-3.index", {}); }), ExitCode::kUsage);
  tests::save_small({.prefix = folder.prefix()}, 3);
  std::filesystem::resize_file(folder / "model.ckpt-3.index", 1);
  EXPECT_EQ(code_of([&] { latest_save(folder.path(), {}); }), ExitCode::kBadData);
}

}  // namespace
}  // namespace lockstep::checkpoint
