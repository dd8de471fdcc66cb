#include "checkpoint/tools/inspect.h"

#include <limits>
#include <map>

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/tools/tensor_values.h"
#include "tests/checkpoint/bundle/sliced_save.h"

namespace lockstep::checkpoint {
namespace inspect_test {

using ::testing::HasSubstr;
using tests::SaveMaker;
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

/// Bits 0, 2, 8 and 10 of 16 are kept.
TEST(Inspect, ShowTellsHowATensorIsStored) {
  TemporaryFolder folder;
  SaveMaker maker(2);
  const at::Tensor rows = at::arange(40, at::kFloat).reshape({8, 5});
  maker.add("_lockstep/whole", rows);
  maker.add_sliced("_lockstep/runs", rows, tests::cut_at({8, 5}, {11, 23, 40}));
  maker.add_sliced("_lockstep/columns", rows, tests::cut_along({8, 5}, 1, {1, 4}));
  maker.add("_lockstep/masks/w", at::full({2}, 5, at::kByte));
  maker.add("_lockstep/sparse/_lockstep/w/values", at::ones({4}));
  maker.add_text("_lockstep/sparse/_lockstep/w/form", "[4, 4] _lockstep/masks/w");
  maker.write(folder / "m-1");

  const auto shown = nlohmann::json::parse(show_save(folder / "m-1", {.json = true}).text);
  ASSERT_EQ(shown["tensors"].size(), 5U);
  std::map<std::string, nlohmann::json> tensors;
  for (const auto& tensor : shown["tensors"]) tensors[tensor["name"]] = tensor;
  const auto& whole = tensors.at("_lockstep/whole");
  const auto& runs = tensors.at("_lockstep/runs");
  const auto& columns = tensors.at("_lockstep/columns");
  const auto& sparse = tensors.at("_lockstep/w");
  EXPECT_EQ(runs["slices"].size(), 7U);  // the middle range takes three boxes, the others two
  EXPECT_EQ(runs["slices"][0]["box"], "0:2,0:5");
  EXPECT_TRUE(runs["shard"].is_null());
  EXPECT_EQ(runs["size"], 160);
  EXPECT_EQ(runs["crc32c"], whole["crc32c"]);  // of the values, however they are cut
  EXPECT_EQ(runs["sha256"], whole["sha256"]);
  EXPECT_TRUE(columns["crc32c"].is_null());
  EXPECT_EQ(columns["sha256"], whole["sha256"]);
  EXPECT_FALSE(whole.contains("slices"));
  EXPECT_EQ(sparse["mask"], "_lockstep/masks/w");
  EXPECT_EQ(sparse["shape"], nlohmann::json::array({4, 4}));
  EXPECT_EQ(sparse["sparsity"], 0.75);
  EXPECT_EQ(sparse["size"], 64);
  EXPECT_EQ(sparse["stored_bytes"], 16 + 1 + 4 + 24);  // values; a text: length, crc, letters
  EXPECT_EQ(shown["dense_bytes"], 3 * 160 + 2 + 64);
  EXPECT_EQ(shown["stored_bytes"], 3 * 160 + 2 + 45);

  const std::string table = show_save(folder / "m-1", {}).text;
  EXPECT_THAT(table, HasSubstr("m-1, 2 shards, 527 bytes, dense 546 bytes"));
  EXPECT_THAT(table, HasSubstr("7 slices: 4 in shard 0, 3 in shard 1"));
  EXPECT_THAT(table, HasSubstr("75.00 % pruned"));
  const auto listed = nlohmann::json::parse(list_saves(folder.path(), {.json = true}).text);
  EXPECT_EQ(listed[0]["dense_bytes"], 546);
  EXPECT_GT(listed[0]["bytes"], 527);  // with gaps
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

/// State that the iterator of a tf.data set saves, among values of known types.
TEST(Inspect, AValueOfATypeThatIsNotReadClosesNoneOfTheOthers) {
  TemporaryFolder folder;
  SaveMaker maker;
  maker.add("_lockstep/known", at::arange(4, at::kFloat));
  maker.add("_lockstep/iterator", at::arange(9, at::kByte));
  maker.index.entries["_lockstep/iterator"].dtype = 21;
  maker.index.entries["_lockstep/iterator"].shape = {2};
  const std::string save = folder.prefix() + "-1";
  maker.write(save);
  EXPECT_TRUE(verify_saves(save, {}).ok);
  EXPECT_THAT(show_save(save, {}).text, HasSubstr("variant"));
  const auto shown = nlohmann::json::parse(show_save(save, {.json = true, .values = true}).text);
  EXPECT_EQ(shown["tensors"][0]["dtype"], "variant");
  EXPECT_TRUE(shown["tensors"][0]["sha256"].is_null());
  EXPECT_EQ(shown["tensors"][1]["values"], nlohmann::json::array({0, 1, 2, 3}));
  EXPECT_TRUE(diff_saves(save, save, {}).ok);
  BundleReader reader(save);
  EXPECT_TRUE(reader.read("_lockstep/known").equal(at::arange(4, at::kFloat)));
  try {
    reader.read("_lockstep/iterator");
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    EXPECT_THAT(fault.what(), HasSubstr("has elements of the type variant"));
    EXPECT_THAT(fault.what(), ::testing::Not(HasSubstr("remove")));
  }
  std::filesystem::resize_file(shard_path(save, 0, 1), 3);
  EXPECT_FALSE(verify_saves(save, {}).ok) << "its place is looked at too";
}

TEST(Inspect, TheLatestIsWhatTheStateFileNames) {
  TemporaryFolder folder;
  for (int64_t step : {9, 10}) tests::save_small({.prefix = folder.prefix()}, step);
  write_state_file(folder.path(), {"model.ckpt-9", {"model.ckpt-9"}});
  EXPECT_EQ(latest_save(folder.path(), {}).text, folder.prefix() + "-9\n");
  EXPECT_EQ(save_at(folder.path()), folder.prefix() + "-9");
}

TEST(Inspect, ASaveOfManyShardsNeedsFewOpenFiles) {
  TemporaryFolder folder;
  constexpr int kNumShards = 300;
  SaveMaker maker(kNumShards);
  for (int i = 0; i < kNumShards; ++i)
    maker.add("_lockstep/" + std::to_string(1000 + i), at::full({2}, static_cast<float>(i)), i);
  maker.write(folder.prefix() + "-1");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{200, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_THAT(list_saves(folder.path(), {}).text, HasSubstr("complete"));
  BundleReader reader(folder.prefix() + "-1");
  for (int i = 0; i < kNumShards; ++i)
    EXPECT_EQ(reader.read("_lockstep/" + std::to_string(1000 + i))[0].item<float>(), i);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
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

}  // namespace inspect_test
}  // namespace lockstep::checkpoint
