#include "infer/exports/export.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/import/load_weights.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"
#include "model/networks/small_networks.h"
#include "recal/quantization/fake_quantizer.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::exports {
namespace export_test {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using tests::SafetensorsFile;
using tests::TemporaryFolder;

/// A digits network, half of its first two weights pruned, after some quantized steps.
struct QuantizedRun {
  explicit QuantizedRun(bool per_output = true, const std::vector<int64_t>& layers = {0, 1, 2, 3})
      : quantizer(net.layers()) {
    net.set_layer_hook(&quantizer);
    quantizer.configure(layers, per_output, true);
    for (const int64_t layer : {0, 1}) prune(layer);
  }

  at::Tensor weight(int64_t layer) { return net.params()[static_cast<size_t>(2 * layer)].tensor; }

  void prune(int64_t layer) {
    const at::NoGradGuard no_grad;
    at::Tensor values = weight(layer);
    at::Tensor bits = at::zeros({(values.numel() + 7) / 8}, at::kByte);
    at::Tensor flat = values.view(-1);
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (i % 2 == 0)
        bits[i / 8].add_(1 << (i % 8));
      else
        flat[i].zero_();
    }
    masks.push_back({"_lockstep/masks/" + slashed(net.params()[2 * layer].name), bits});
  }

  void observe(int num_steps = 3) {
    for (int i = 0; i < num_steps; ++i) {
      net.forward(at::rand({4, 1, 8, 8}));
      quantizer.end_step(world, true);
    }
  }

  /// Returns the prefix of the save.
  std::string save(const TemporaryFolder& folder) {
    StateList state = quantizer.state();
    state.insert(state.end(), masks.begin(), masks.end());
    for (const Param& param : net.params())
      state.push_back({"model/" + slashed(param.name), param.tensor.detach()});
    state.push_back({"_lockstep/step", view_of(&step)});
    const checkpoint::SaveResult result =
        checkpoint::Saver({.prefix = (folder.path() / "model.ckpt").string()}, world)
            .save(state, step);
    EXPECT_TRUE(result.ok);
    return result.prefix;
  }

  at::Tensor logits(const at::Tensor& inputs) {
    const at::NoGradGuard no_grad;
    return net.forward(inputs);
  }

  dist::SelfCommunicator world;
  const std::unique_ptr<model::Model> owned_net = model::digits_net().make({{1, 8, 8}, 10, 17});
  model::Model& net = *owned_net;
  recal::FakeQuantizer quantizer;
  StateList masks;
  int64_t step = 12;
};

/// Computes with what an exported file holds: int8 weights times their scales, inputs rounded to
/// whole steps of theirs.
class FromFile final : public LayerHook {
 public:
  FromFile(const SafetensorsFile& file, const std::vector<LayerInfo>& layers)
      : file_(file), layers_(layers) {}
  at::Tensor input(int64_t layer, const at::Tensor& input) override {
    if (!file_.header.contains(name(layer) + ".input_scale")) return input;
    const float scale = file_.tensor(name(layer) + ".input_scale").item<float>();
    const auto zero_point =
        static_cast<float>(file_.tensor(name(layer) + ".input_zero_point").item<int64_t>());
    const at::Tensor quantized = (input * (1.0F / scale)).round().add(zero_point).clamp(0, 255);
    return (quantized - zero_point) * scale;
  }
  at::Tensor weight(int64_t layer, const at::Tensor&) override {
    const at::Tensor stored = file_.tensor(name(layer) + ".weight");
    if (stored.scalar_type() == at::kFloat) return stored;
    std::vector<int64_t> shape(static_cast<size_t>(stored.dim()), 1);
    const at::Tensor scales = file_.tensor(name(layer) + ".weight_scale");
    shape[0] = scales.numel();
    return stored.to(at::kFloat) * scales.view(shape);
  }

 private:
  std::string name(int64_t layer) const { return layers_[static_cast<size_t>(layer)].name; }

  const SafetensorsFile& file_;
  const std::vector<LayerInfo>& layers_;
};

ExitCode code_of(const std::function<void()>& body, std::string* message = nullptr) {
  try {
    body();
  } catch (const Error& fault) {
    if (message != nullptr) *message = fault.what();
    return fault.code();
  }
  return ExitCode::kDone;
}

class Export : public ::testing::Test {
 protected:
  std::string out() const { return (folder_.path() / "model.safetensors").string(); }
  daemon::CommandResult quantize(const std::string& where) {
    return export_command({.where = where, .out_file = out(), .quantize = true});
  }

  TemporaryFolder folder_;
};

TEST_F(Export, Int8ComputesWhatTrainingImitated) {
  for (const bool per_output : {true, false}) {
    QuantizedRun run(per_output);
    run.observe();
    quantize(run.save(folder_));
    const at::Tensor inputs = at::rand({50, 1, 8, 8});
    const at::Tensor imitated = run.logits(inputs);
    const SafetensorsFile file(out());
    FromFile converted(file, run.net.layers());
    run.net.set_layer_hook(&converted);
    EXPECT_TRUE(at::equal(run.logits(inputs), imitated));
    run.net.set_layer_hook(nullptr);
    EXPECT_FALSE(at::equal(run.logits(inputs), imitated)) << "the rounding shows";
  }
}

TEST_F(Export, WithoutZerosTheSameTensorsAreRead) {
  QuantizedRun run;
  run.observe();
  const std::string prefix = run.save(folder_);
  for (const bool quantize : {false, true}) {
    const auto read = [&](bool sparse) {
      export_command({.where = prefix, .out_file = out(), .quantize = quantize, .sparse = sparse});
      std::map<std::string, at::Tensor> tensors;
      const auto file = checkpoint::open_weights(out());
      for (const std::string& name : file->names()) tensors[name] = file->read(name);
      return std::pair(std::move(tensors), std::filesystem::file_size(out()));
    };
    const auto [dense, dense_bytes] = read(false);
    const auto [sparse, sparse_bytes] = read(true);
    ASSERT_EQ(sparse.size(), dense.size());
    for (const auto& [name, tensor] : dense)
      EXPECT_TRUE(at::equal(sparse.at(name), tensor)) << name;
    EXPECT_LT(sparse_bytes, dense_bytes);
  }
}

TEST_F(Export, FileHoldsInt8WeightsScalesAndBiases) {
  QuantizedRun run;
  run.observe();
  const std::string prefix = run.save(folder_);
  quantize(prefix);
  const SafetensorsFile file(out());
  EXPECT_EQ(file.header.size(), 1U + 4 * 5);
  for (const LayerInfo& layer : run.net.layers()) {
    const at::Tensor weight = file.tensor(layer.name + ".weight");
    EXPECT_EQ(weight.scalar_type(), at::kChar);
    EXPECT_EQ(file.tensor(layer.name + ".weight_scale").sizes(), at::IntArrayRef{weight.size(0)});
    EXPECT_EQ(file.tensor(layer.name + ".input_scale").scalar_type(), at::kFloat);
    EXPECT_EQ(file.tensor(layer.name + ".input_zero_point").scalar_type(), at::kByte);
    EXPECT_EQ(file.tensor(layer.name + ".bias").scalar_type(), at::kFloat);
  }
  const auto& facts = file.header["__metadata__"];
  EXPECT_EQ(facts["format_version"], "1");
  EXPECT_EQ(facts["step"], "12");
  EXPECT_EQ(facts["source"], "model.ckpt-12");
  EXPECT_EQ(facts["weights"], "int8");
}

TEST_F(Export, PrunedWeightsStayZeroAndRoundedOnesAreCountedApart) {
  QuantizedRun run;
  {
    const at::NoGradGuard no_grad;
    at::Tensor row = run.weight(3)[2];
    row.fill_(1);
    row.narrow(0, 0, 100).fill_(0.003);  // below half a step of 1/127
  }
  run.observe();
  const std::string text = quantize(run.save(folder_)).text;
  const SafetensorsFile file(out());
  const auto line = [&](const std::string& name, int64_t num_pruned) {
    const at::Tensor weight = file.tensor(name + ".weight");
    return fmt::format("{} +int8 +{} +{} +0 +0 +{}\n", name, weight.numel(), num_pruned,
                       weight.eq(0).sum().item<int64_t>() - num_pruned);
  };
  for (const std::string name : {"blocks.0.conv", "blocks.1.conv"}) {
    const at::Tensor weight = file.tensor(name + ".weight").view(-1);
    EXPECT_EQ(weight.slice(0, 1, {}, 2).count_nonzero().item<int64_t>(), 0);
    EXPECT_THAT(text, ContainsRegex(line(name, weight.numel() / 2)));
  }
  EXPECT_EQ(file.tensor("classifier.weight")[2].eq(0).sum().item<int64_t>(), 100);
  EXPECT_THAT(text, HasSubstr("model.ckpt-12, step 12"));
  EXPECT_THAT(text, ContainsRegex(line("classifier", 0)));
  EXPECT_THAT(text, HasSubstr("as float32 take 103464 "));
}

TEST_F(Export, LayersThatWereNotQuantizedStayFloat32) {
  QuantizedRun run(true, {1, 2});
  run.observe();
  EXPECT_THAT(quantize(run.save(folder_)).text, ContainsRegex("classifier +float32 +2560"));
  const SafetensorsFile file(out());
  EXPECT_TRUE(at::equal(file.tensor("classifier.weight"), run.weight(3)));
  EXPECT_EQ(file.tensor("blocks.1.conv.weight").scalar_type(), at::kChar);
  EXPECT_FALSE(file.header.contains("classifier.weight_scale"));
  const at::Tensor inputs = at::rand({20, 1, 8, 8});
  const at::Tensor imitated = run.logits(inputs);
  FromFile converted(file, run.net.layers());
  run.net.set_layer_hook(&converted);
  EXPECT_TRUE(at::equal(run.logits(inputs), imitated));
}

TEST_F(Export, WithoutQuantizeWeightsStayAndScalesStandBeside) {
  QuantizedRun run;
  run.observe();
  export_command({.where = run.save(folder_), .out_file = out()});
  const SafetensorsFile file(out());
  for (int64_t layer = 0; layer < 4; ++layer) {
    const std::string name = run.net.layers()[static_cast<size_t>(layer)].name;
    EXPECT_TRUE(at::equal(file.tensor(name + ".weight"), run.weight(layer)));
    EXPECT_TRUE(at::equal(file.tensor(name + ".weight_scale"),
                          recal::weight_scales(run.weight(layer), true)));
  }
  EXPECT_EQ(file.header["__metadata__"]["weights"], "float32");
}

TEST_F(Export, ASaveThatWasNotQuantizedIsRefused) {
  std::string message;
  QuantizedRun never(true, {});
  EXPECT_EQ(code_of([&] { quantize(never.save(folder_)); }, &message), ExitCode::kUsage);
  EXPECT_THAT(message, HasSubstr("model.ckpt-12: no layer of it is quantized"));
  QuantizedRun unseen;
  EXPECT_EQ(code_of([&] { quantize(unseen.save(folder_)); }, &message), ExitCode::kUsage);
  EXPECT_THAT(message, HasSubstr("the inputs of blocks.0.conv were not observed yet"));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Export, PrunedWeightsThatAreNotZeroAreRefused) {
  QuantizedRun run;
  run.observe();
  {
    const at::NoGradGuard no_grad;
    run.weight(1).view(-1)[7].fill_(0.5);
  }
  std::string message;
  EXPECT_EQ(code_of([&] { quantize(run.save(folder_)); }, &message), ExitCode::kBadData);
  EXPECT_THAT(message, HasSubstr("1 of the 2304 pruned weights of blocks.1.conv are not zero"));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(Export, AMaskOfAnotherSizeIsRefused) {
  QuantizedRun run;
  run.observe();
  run.masks[0].tensor = at::zeros({5}, at::kByte);
  std::string message;
  EXPECT_EQ(code_of([&] { quantize(run.save(folder_)); }, &message), ExitCode::kBadData);
  EXPECT_THAT(message, HasSubstr("does not have one bit for each of 144 weights"));
}

TEST_F(Export, AFolderMeansItsNewestSave) {
  QuantizedRun run;
  run.observe();
  run.save(folder_);
  run.step = 20;
  run.save(folder_);
  EXPECT_THAT(quantize(folder_.path().string()).text, HasSubstr("model.ckpt-20, step 20"));
  TemporaryFolder empty;
  EXPECT_EQ(code_of([&] { quantize(empty.path().string()); }), ExitCode::kInputMissing);
}

}  // namespace export_test
}  // namespace lockstep::exports
