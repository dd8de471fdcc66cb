#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/import/load_weights.h"
#include "checkpoint/import/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::checkpoint {
namespace pretrained_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::TemporaryFolder;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kWholeIndex =
    R"({"metadata": {"total_size": 20}, "weight_map": {"a": "model-00001-of-00002.safetensors",
        "b.weight": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}})";

/// A folder as transformers writes it: `a` in one shard, `b.weight` and `c` in another.
class Pretrained : public ::testing::Test {
 protected:
  Pretrained() {
    write_safetensors(at(kFirst), {{"a", at::tensor({1.F, 2.F})}}, {{"format", "pt"}});
    write_safetensors(at(kSecond), {{"b.weight", at::tensor({3.F})}, {"c", at::tensor({4.F, 5.F})}},
                      {});
    index(kWholeIndex);
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  void index(const std::string& text) {
    files::write_atomically(at("model.safetensors.index.json"), text);
  }
  /// Message of the refusal of the folder.
  std::string refusal(ExitCode code = ExitCode::kBadData) const {
    try {
      (void)open_weights(folder_.path().string());
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), code);
      return fault.what();
    }
    return "nothing was refused";
  }

  TemporaryFolder folder_;
};

TEST_F(Pretrained, AFolderAndItsIndexAreReadAsOneFile) {
  for (const std::string& path : {folder_.path().string(), folder_.path().string() + "/",
                                  at("model.safetensors.index.json")}) {
    const auto file = open_weights(path);
    EXPECT_THAT(file->names(), ElementsAre("a", "b.weight", "c"));
    EXPECT_TRUE(file->read("a").equal(at::tensor({1.F, 2.F})));
    EXPECT_TRUE(file->read("c").equal(at::tensor({4.F, 5.F})));
    EXPECT_EQ(file->form("b.weight").text(), "float32 [1]");
    EXPECT_EQ(file->kernel_layout("b.weight"), KernelLayout::kHere);
  }
}

TEST_F(Pretrained, AWholeFileComesBeforeShards) {
  write_safetensors(at("model.safetensors"), {{"whole", at::ones({1})}}, {});
  EXPECT_THAT(open_weights(folder_.path().string())->names(), ElementsAre("whole"));
}

TEST_F(Pretrained, ATensorThatTheIndexLeavesOutIsReadToo) {
  index(fmt::format(R"({{"weight_map": {{"a": "{}", "c": "{}"}}}})", kFirst, kSecond));
  EXPECT_THAT(open_weights(folder_.path().string())->names(), ElementsAre("a", "b.weight", "c"));
}

TEST_F(Pretrained, AllMissingShardsAreNamed) {
  files::remove_file(at(kFirst));
  EXPECT_THAT(refusal(ExitCode::kInputMissing),
              HasSubstr(fmt::format("1 of its 2 shards are missing: {}; copy", kFirst)));
  files::remove_file(at(kSecond));
  EXPECT_THAT(refusal(ExitCode::kInputMissing),
              HasSubstr(fmt::format("missing: {}, {};", kFirst, kSecond)));
}

TEST_F(Pretrained, ATruncatedShardIsRefused) {
  const std::string bytes = files::read(at(kSecond));
  files::write_atomically(at(kSecond), bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(refusal(), HasSubstr(kSecond));
  files::write_atomically(at(kSecond), "");
  EXPECT_THAT(refusal(), HasSubstr(kSecond));
}

TEST_F(Pretrained, ATensorIsInOneShardAlone) {
  write_safetensors(at(kSecond),
                    {{"a", at::ones({2})}, {"b.weight", at::ones({1})}, {"c", at::ones({2})}}, {});
  EXPECT_THAT(refusal(),
              HasSubstr(fmt::format("tensor 'a' is in two shards, {} and {}", kFirst, kSecond)));
}

TEST_F(Pretrained, ATensorIsInTheShardThatTheIndexNames) {
  index(fmt::format(R"({{"weight_map": {{"a": "{1}", "c": "{0}"}}}})", kFirst, kSecond));
  EXPECT_THAT(refusal(), HasSubstr(fmt::format("'a' is not in {}", kSecond)));
  index(fmt::format(R"({{"weight_map": {{"a": "{}", "lost": "{}"}}}})", kFirst, kSecond));
  EXPECT_THAT(refusal(), HasSubstr(fmt::format("'lost' is not in {}", kSecond)));
}

TEST_F(Pretrained, AnIndexWithANameTwiceIsRefused) {
  index(
      fmt::format(R"({{"weight_map": {{"a": "{0}", "c": "{1}", "a": "{0}"}}}})", kFirst, kSecond));
  EXPECT_THAT(refusal(), HasSubstr("it has tensor 'a' twice"));
  // The same key outside the map names no tensor.
  index(fmt::format(R"({{"metadata": {{"x": 1, "x": 2}}, "weight_map": {{"a": "{}", "c": "{}"}}}})",
                    kFirst, kSecond));
  EXPECT_EQ(open_weights(folder_.path().string())->names().size(), 3U);
}

TEST_F(Pretrained, AnIndexNamesFilesOfItsFolderAlone) {
  files::make_folders(folder_.path() / "inside");
  write_safetensors(at("inside/w.safetensors"), {{"w", at::ones({1})}}, {});
  index(R"({"weight_map": {"w": "inside/../inside/w.safetensors"}})");
  EXPECT_THAT(open_weights(folder_.path().string())->names(), ElementsAre("w"));
  for (const std::string& outside :
       {at(kFirst), std::string("../w.safetensors"), std::string("inside/../../w.safetensors"),
        std::string(), std::string(".."), std::string("inside/")}) {
    index(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", outside));
    EXPECT_THAT(refusal(), HasSubstr(fmt::format("'{}', which is outside its folder", outside)));
  }
}

TEST_F(Pretrained, AnIndexThatIsNoneIsRefused) {
  for (const char* text :
       {"", "{", "[]", "null", "7", "{}", R"({"weight_map": {}})", R"({"weight_map": []})",
        R"({"weight_map": 3})", R"({"weight_map": {"a": 3}})", R"({"weight_map": {"a": ["x"]}})"}) {
    index(text);
    EXPECT_THAT(refusal(), HasSubstr("model.safetensors.index.json is not a valid index")) << text;
  }
  index(R"({"weight_map": {"a": "model.safetensors.index.json"}})");
  EXPECT_THAT(refusal(), HasSubstr("not a supported file of weights"));
}

TEST_F(Pretrained, AnEmptyFolderIsNoWeights) {
  const TemporaryFolder empty;
  EXPECT_FALSE(weights_in_folder(empty.path().string()).has_value());
  EXPECT_THROW((void)open_weights(empty.path().string()), Error);
}

}  // namespace pretrained_test
}  // namespace lockstep::checkpoint
