#include "infer/saved_model.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "infer/predictor.h"
#include "small_networks.h"
#include "support/temporary_folder.h"

namespace lockstep::infer {
namespace saved_model_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// RUN/saved_models/7 as a run publishes it.
class SavedModel : public ::testing::Test {
 protected:
  SavedModel() {
    fs::create_directories(model_);
    fs::create_directories(run_.path() / "checkpoints");
    tests::line_module().save((model_ / "model.pt").string());
    const std::string bytes = files::read(model_ / "model.pt");
    manifest_ = {
        {"global_step", 7},
        {"lockstep", "0.1.0"},
        {"input_shape", {3}},
        {"num_classes", 2},
        {"files", {{"model.pt", {{"num_bytes", bytes.size()}, {"sha256", sha256_hex(bytes)}}}}}};
    write_manifest();
  }

  void write_manifest() const { std::ofstream(model_ / "manifest.json") << manifest_; }

  std::string fault(ExitCode code) const {
    try {
      (void)open_saved_model(model_, "0.1.0");
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), code) << fault.what();
      return fault.what();
    }
    return "nothing was thrown";
  }

  const tests::TemporaryFolder run_;
  const fs::path model_ = run_.path() / "saved_models" / "7";
  Json manifest_;
};

using SavedModelRows = SavedModel;

TEST_F(SavedModelRows, N80_a_saved_model_needs_no_code_of_the_network) {
  const LoadedNetwork network = open_saved_model(model_, "0.1.0");
  EXPECT_EQ(network.step, 7);
  Predictor predictor(network, {.engine = "plain", .tensorrt = {}}, at::kCPU);
  const coord::DataMap feed = tests::feed_from(0, 4);
  EXPECT_TRUE(at::equal(tests::tensor_in(predictor.predict(feed), "logits"),
                        at::linear(tests::tensor_in(feed, "inputs"), tests::weight_23())));
}

TEST_F(SavedModel, NodesAreThoseOfTheRunElseTheManifests) {
  EXPECT_EQ(open_saved_model(model_, "0.1.0").nodes.outputs.at(0).name, "logits");
  std::ofstream(run_.path() / "checkpoints/io_nodes.json")
      << R"({"inputs": [{"name": "inputs", "shape": [null, 3]}], "outputs": [{"name": "scores", "shape": [null, 2]}]})";
  EXPECT_EQ(open_saved_model(model_, "0.1.0").nodes.outputs.at(0).name, "scores");
  fs::create_directory_symlink("7", model_.parent_path() / "best");
  EXPECT_EQ(open_saved_model(model_.parent_path() / "best", "0.1.0").nodes.outputs.at(0).name,
            "scores");
}

TEST_F(SavedModel, WithoutAManifestItIsNotTrusted) {
  fs::remove(model_ / "manifest.json");
  EXPECT_THAT(fault(ExitCode::kBadData), HasSubstr("contains no manifest.json"));
}

TEST_F(SavedModel, CutOrChangedItIsNotTrusted) {
  const std::string bytes = files::read(model_ / "model.pt");
  std::ofstream(model_ / "model.pt") << bytes.substr(0, bytes.size() / 2);
  EXPECT_THAT(fault(ExitCode::kBadData),
              HasSubstr("its manifest says " + std::to_string(bytes.size())));
  std::string changed = bytes;
  changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 1);
  std::ofstream(model_ / "model.pt") << changed;
  EXPECT_THAT(fault(ExitCode::kBadData), HasSubstr("SHA-256"));
  fs::remove(model_ / "model.pt");
  EXPECT_THAT(fault(ExitCode::kBadData), HasSubstr("model.pt: is missing"));
}

TEST_F(SavedModel, OfANewerLockstepItIsRefused) {
  for (const char* version : {"0.1.1", "0.2.0", "0.10.0", "1.0.0"}) {
    manifest_["lockstep"] = version;
    write_manifest();
    EXPECT_THAT(fault(ExitCode::kBadData), HasSubstr(std::string("by Lockstep ") + version));
  }
  manifest_["lockstep"] = "0.0.9";
  write_manifest();
  EXPECT_EQ(open_saved_model(model_, "0.1.0").step, 7);
}

TEST_F(SavedModel, TheNewestIsThatOfTheHighestStep) {
  for (const char* name : {"10", "9", "best", ".11.new.tmp", "012"})
    fs::create_directories(model_.parent_path() / name);
  EXPECT_EQ(newest_saved_model(model_.parent_path()).filename(), "10");
  EXPECT_THROW((void)newest_saved_model(run_.path() / "elsewhere"), Error);
}

}  // namespace saved_model_test
}  // namespace lockstep::infer
