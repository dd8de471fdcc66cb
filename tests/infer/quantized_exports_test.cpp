#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "infer/exports/export.h"
#include "recal/quantization/int8_rounding.h"
#include "tests/infer/saved_networks.h"
#include "tests/support/temporary_folder.h"
#include "train/records.h"

namespace lockstep::exports {
namespace quantized_exports_test {

using ::testing::HasSubstr;
using tests::QuantizedCase;
using tests::TrainedNetwork;

/// A network that rounds, saved as a run lays it out.
class QuantizedExports : public ::testing::Test {
 protected:
  void make(const QuantizedCase& c) {
    trained.emplace(tests::network_cases()[c.network]);
    trained->quantize(c);
    prefix = trained->save(at("run/checkpoints/m"));
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  daemon::CommandResult to(const std::string& format, bool quantize = false) {
    return export_command(
        {.where = prefix, .out_file = at("out"), .quantize = quantize, .format = format});
  }
  nlohmann::json manifest(const std::string& name = "out.json") const {
    return nlohmann::json::parse(files::read(at(name)));
  }

  tests::TemporaryFolder folder_;
  std::optional<TrainedNetwork> trained;
  std::string prefix;
};

TEST_F(QuantizedExports, TorchScriptRoundsBitForBitAsEvaluationDoes) {
  for (const QuantizedCase& c : tests::quantized_cases()) {
    make(c);
    to("torchscript");
    torch::jit::Module module = torch::jit::load(at("out"));
    const at::Tensor inputs = trained->inputs(9);
    const at::Tensor logits = trained->logits(inputs);
    EXPECT_TRUE(at::equal(module.forward({inputs}).toTensor(), logits)) << c.title;
    EXPECT_FALSE(at::equal(trained->plain_logits(inputs), logits)) << c.title << ": it shows";
  }
}

TEST_F(QuantizedExports, TorchScriptHoldsTheScalesOfItsWeights) {
  make(tests::quantized_cases().front());
  to("torchscript");
  torch::jit::Module module = torch::jit::load(at("out"));
  int num_found = 0;
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.name != "blocks.1.conv.weight_scale") continue;
    ++num_found;
    EXPECT_TRUE(
        at::equal(buffer.value, recal::weight_scales(trained->net->params()[2].tensor, true)));
  }
  EXPECT_EQ(num_found, 1);
  EXPECT_EQ(manifest()["tensors"].size(), 8U + 2 * 4);
}

TEST_F(QuantizedExports, OnnxStoresInt8WeightsWhereAsked) {
  make(tests::quantized_cases().front());
  EXPECT_THAT(to("onnx").text, HasSubstr("4 quantized layers round their inputs"));
  const auto fake_bytes = std::filesystem::file_size(at("out"));
  EXPECT_EQ(manifest()["quantization"], "fake");
  EXPECT_THAT(to("onnx", true).text, HasSubstr("weights are stored as int8"));
  EXPECT_EQ(manifest()["quantization"], "int8");
  EXPECT_LT(std::filesystem::file_size(at("out")), fake_bytes / 2);
  int num_int8 = 0;
  const nlohmann::json facts = manifest();
  for (const auto& tensor : facts["tensors"])
    if (tensor["name"].get<std::string>().ends_with(".weight"))
      num_int8 += tensor["dtype"] == "int8" ? 1 : 0;
  EXPECT_EQ(num_int8, 4);
}

TEST_F(QuantizedExports, Int8NeedsObservedInputs) {
  make(tests::quantized_cases().back());
  try {
    to("onnx", true);
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    EXPECT_THAT(fault.what(), HasSubstr("the inputs of blocks.0.conv were not observed yet"));
  }
  EXPECT_FALSE(std::filesystem::exists(at("out")));
  to("onnx");  // rounds the weights alone, as training did
  EXPECT_EQ(manifest()["quantization"], "fake");
}

TEST_F(QuantizedExports, TheManifestsEvalIsOfWhatTheFileComputes) {
  make(tests::quantized_cases().front());
  train::write_summary(at("run/summary.json"),
                       {.steps = 30,
                        .train_loss = 0.25,
                        .eval = train::EvalResult{.loss = 0.5, .accuracy = 0.75, .num_samples = 8},
                        .parameters_sha256 = train::parameters_sha256(trained->net->params())});
  for (const bool quantize : {false, true})
    for (const char* format : {"onnx", "safetensors"}) {
      to(format, quantize);
      EXPECT_EQ(manifest()["eval"]["accuracy"], 0.75);
      EXPECT_EQ(manifest()["quantization"], quantize ? "int8" : "fake");
    }
  to("torchscript");
  EXPECT_EQ(manifest()["eval"]["accuracy"], 0.75);
  export_command({.where = prefix, .out_file = at("tf/m"), .format = "tensorflow"});
  EXPECT_TRUE(manifest("tf/m-30.json")["eval"].is_null());
  EXPECT_EQ(manifest("tf/m-30.json")["train_loss"], 0.25);
  EXPECT_EQ(manifest("tf/m-30.json")["quantization"], "left out");
}

TEST_F(QuantizedExports, APathThatIsNoUtf8DoesNotEndAnExport) {
  trained.emplace(tests::network_cases()[0]);
  const std::string folder = at("run\xff");
  prefix = trained->save(folder + "/checkpoints/m");
  to("onnx");
  EXPECT_THAT(manifest()["source"].get<std::string>(), HasSubstr("run\xEF\xBF\xBD/checkpoints"));
  EXPECT_TRUE(manifest()["quantization"].is_null());
  train::write_summary(folder + "/summary.json", {.checkpoint = prefix});
  EXPECT_THAT(files::read(folder + "/summary.json"), HasSubstr("run\xEF\xBF\xBD/checkpoints"));
}

}  // namespace quantized_exports_test
}  // namespace lockstep::exports
