#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/import/load_weights.h"
#include "infer/exports/export.h"
#include "tests/infer/saved_networks.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::exports {
namespace pretrained_export_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::TemporaryFolder;
using tests::TrainedNetwork;

class PretrainedExports : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  daemon::CommandResult write(const std::string& out, std::optional<int64_t> max_shard_bytes = {}) {
    return export_command({.where = prefix_,
                           .out_file = at(out),
                           .max_shard_bytes = max_shard_bytes,
                           .format = "pretrained"});
  }
  /// Every tensor of the folder is the network's, bit for bit.
  void expect_tensors(const std::string& out) {
    const auto file = checkpoint::open_weights(at(out));
    ASSERT_EQ(file->names().size(), trained_.net->params().size());
    for (const Param& param : trained_.net->params())
      EXPECT_TRUE(file->read(param.name).equal(param.tensor)) << param.name;
  }

  TemporaryFolder folder_;
  TrainedNetwork trained_{tests::network_cases().front()};
  std::string prefix_ = trained_.save(at("run/checkpoints/m"));
};

TEST_F(PretrainedExports, OneFileUpToTheLimit) {
  const daemon::CommandResult result = write("out/");
  EXPECT_THAT(files::list(at("out")), ElementsAre("model.safetensors"));
  EXPECT_EQ(tests::SafetensorsFile(at("out/model.safetensors")).header["__metadata__"]["format"],
            "pt");
  expect_tensors("out");
  EXPECT_THAT(result.text, HasSubstr("without config.json"));
  const auto manifest = nlohmann::json::parse(files::read(at("out.json")));
  EXPECT_EQ(manifest["format"], "pretrained");
  EXPECT_EQ(manifest["file"], "out");
  EXPECT_EQ(manifest["num_bytes"], std::filesystem::file_size(at("out/model.safetensors")));
  EXPECT_EQ(manifest["tensors"].size(), trained_.net->params().size());
}

TEST_F(PretrainedExports, ShardsAboveIt) {
  for (const int64_t limit : {1, 100, 3000, 1 << 20}) {
    const std::string out = fmt::format("out{}", limit);
    write(out, limit);
    expect_tensors(out);
    int64_t num_shards = 0;
    for (const std::string& name : files::list(at(out))) {
      if (!name.ends_with(".safetensors")) continue;
      ++num_shards;
      const tests::SafetensorsFile shard(at(out + "/" + name));
      const auto num_bytes = static_cast<int64_t>(shard.bytes.size() - shard.data_begin);
      EXPECT_TRUE(num_bytes <= limit || shard.header.size() == 2) << name;  // one tensor, metadata
    }
    EXPECT_EQ(num_shards > 1, limit < (1 << 20));
    EXPECT_EQ(files::exists(at(out + "/model.safetensors.index.json")), num_shards > 1);
  }
  const auto index = nlohmann::json::parse(files::read(at("out1/model.safetensors.index.json")));
  const size_t num_tensors = trained_.net->params().size();
  EXPECT_EQ(index["weight_map"].size(), num_tensors);
  EXPECT_EQ(index["weight_map"].begin().value(),
            fmt::format("model-00001-of-{:05}.safetensors", num_tensors));
}

TEST_F(PretrainedExports, AFolderWithFilesIsLeftAlone) {
  files::make_folders(at("mine"));
  files::write_atomically(at("mine/notes"), "of a user");
  try {
    write("mine");
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kCannotCreate);
    EXPECT_THAT(fault.what(), HasSubstr("mine: exists and is not an empty folder"));
  }
  EXPECT_THAT(files::list(at("mine")), ElementsAre("notes"));
  EXPECT_THAT(files::list(folder_.path()), ElementsAre("mine", "run"));
  files::remove_file(at("mine/notes"));
  write("mine");
  expect_tensors("mine");
}

TEST_F(PretrainedExports, WhatAKilledExportLeftIsReplaced) {
  files::make_folders(at(".out.tmp"));
  files::write_atomically(at(".out.tmp/model-00001-of-00002.safetensors"), "half");
  write("out");
  EXPECT_THAT(files::list(at("out")), ElementsAre("model.safetensors"));
  EXPECT_FALSE(files::exists(at(".out.tmp")));
}

TEST_F(PretrainedExports, ShardsBelongToThisFormat) {
  try {
    export_command({.where = prefix_, .out_file = at("out"), .max_shard_bytes = 5});
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    EXPECT_THAT(fault.what(), HasSubstr("--max-shard-size belongs to --format pretrained"));
  }
}

}  // namespace pretrained_export_test
}  // namespace lockstep::exports
