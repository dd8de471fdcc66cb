#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/flags.h"
#include "base/yaml/config_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "daemon/config/checkpoint_metadata.h"
#include "infer/exports/checkpoint_model.h"
#include "infer/exports/export.h"
#include "infer/exports/formats.h"
#include "tests/infer/saved_networks.h"
#include "tests/support/temporary_folder.h"
#include "train/records.h"

namespace lockstep::exports {
namespace exports_test {

using ::testing::HasSubstr;
using tests::NetworkCase;
using tests::TemporaryFolder;
using tests::TrainedNetwork;

const NetworkCase& digits() {
  static const NetworkCase first = tests::network_cases().front();
  return first;
}

struct Refusal {
  ExitCode code = ExitCode::kDone;
  std::string text;
};

Refusal refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& fault) {
    return {fault.code(), fault.what()};
  }
  return {};
}

class Exports : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  /// Saves with the folders of a run.
  std::string save(TrainedNetwork* trained) { return trained->save(at("run/checkpoints/m")); }
  daemon::CommandResult to(const std::string& format, const std::string& where) {
    return export_command({.where = where, .out_file = at("out"), .format = format});
  }
  nlohmann::json manifest(const std::string& name = "out.json") const {
    return nlohmann::json::parse(files::read(at(name)));
  }
  void put(const std::string& name, const std::string& text) {
    files::make_folders(std::filesystem::path(at(name)).parent_path());
    files::write_atomically(at(name), text);
  }

  TemporaryFolder folder_;
};

std::vector<double> rates_seen, epsilons_seen;

/// A digits_net whose maker reads a flag.
model::MakeModel read_flagged(ConfigReader* /*in*/) {
  return [](const model::ModelInputs& data) {
    rates_seen.push_back(flags::get<double>("learning_rate"));
    epsilons_seen.push_back(flags::get<double>("opt_epsilon"));
    return model::digits_net().make(data);
  };
}

TEST_F(Exports, ANetworkThatReadsFlagsGetsThoseOfItsRun) {
  model::model_types().add({.name = "flagged", .read = read_flagged});
  NetworkCase flagged = digits();
  flagged.settings = {"model.type=flagged", "optimizer.learning_rate=0.5", "optimizer.type=adamw"};
  TrainedNetwork trained(flagged);
  const std::string prefix = save(&trained);
  EXPECT_FALSE(flags::are_frozen());
  (void)rebuild_network(read_checkpoint_model(prefix));
  EXPECT_FALSE(flags::are_frozen());
  const flags::Frozen of_a_run(flags::Values{{"learning_rate", "0.25"}, {"opt_epsilon", "1"}});
  (void)rebuild_network(read_checkpoint_model(prefix));  // as where a run publishes its model
  EXPECT_THAT(rates_seen, testing::ElementsAre(0.5, 0.25));
  EXPECT_THAT(epsilons_seen, testing::ElementsAre(1e-8, 1));  // adamw's default, adam's is 1e-7
}

TEST_F(Exports, TheNetworksOfTheseTestsAnswerToTheirInputs) {
  for (const NetworkCase& c : tests::network_cases()) {
    TrainedNetwork trained(c);
    EXPECT_GT(TrainedNetwork::liveliness(trained.logits(trained.inputs(6))), 0.2) << c.title;
  }
}

TEST_F(Exports, ANetworkIsRebuiltFromTheSaveAlone) {
  for (const NetworkCase& c : tests::network_cases()) {
    TrainedNetwork trained(c);
    const CheckpointNetwork rebuilt = rebuild_network(read_checkpoint_model(save(&trained)));
    const at::Tensor inputs = trained.inputs(5);
    EXPECT_TRUE(at::equal(rebuilt.model->forward(inputs), trained.logits(inputs))) << c.title;
    EXPECT_EQ(rebuilt.input_shape, c.input_shape);
    EXPECT_EQ(rebuilt.num_classes, c.num_classes);
  }
}

TEST_F(Exports, TheFactsOfARunNameItsNetwork) {
  TrainedNetwork trained(digits());
  for (const char* key : {"_lockstep/settings", "_lockstep/data/input_shape",
                          "_lockstep/data/num_classes", "_lockstep/sampler/steps_per_epoch"})
    trained.leave_out(key);
  daemon::CheckpointMetadata facts{.steps_per_epoch = 20,
                                   .num_classes = 10,
                                   .input_shape = "[1, 8, 8]",
                                   .settings = "model.type=digits_net"};
  for (const StateEntry& entry : facts.state({})) trained.state.push_back(entry);
  const CheckpointModel saved = read_checkpoint_model(save(&trained));
  EXPECT_TRUE(names_its_network(saved));
  EXPECT_EQ(rebuild_network(saved).input_shape, digits().input_shape);
}

TEST_F(Exports, ASaveThatDoesNotNameItsNetworkIsRefusedWithAWayOut) {
  for (const char* key :
       {"_lockstep/settings", "_lockstep/data/input_shape", "_lockstep/data/num_classes"}) {
    TrainedNetwork trained(digits());
    trained.leave_out(key);
    const std::string prefix = save(&trained);
    const Refusal refusal = refusal_of([&] { to("onnx", prefix); });
    EXPECT_EQ(refusal.code, ExitCode::kUsage);
    EXPECT_THAT(refusal.text, HasSubstr("m-30: its network is unknown"));
    EXPECT_THAT(refusal.text, HasSubstr("--format safetensors"));
    EXPECT_FALSE(std::filesystem::exists(at("out")));
    to("safetensors", prefix);
    EXPECT_TRUE(manifest()["parameters_sha256"].is_null()) << "what is unknown is not invented";
    EXPECT_TRUE(manifest()["input_shape"].is_null());
    std::filesystem::remove(at("out"));
  }
}

TEST_F(Exports, AClassInPythonIsLeftToPython) {
  TrainedNetwork trained(digits());
  trained.settings = "data.seed=3\nmodel.args.width=64\nmodel.type=python";
  const std::string prefix = save(&trained);
  const Refusal refusal = refusal_of([&] { to("torchscript", prefix); });
  EXPECT_EQ(refusal.code, ExitCode::kUsage);
  EXPECT_THAT(refusal.text, HasSubstr("a class in Python: use --format pt2"));
  for (const char* format : {"onnx", "pt2"}) {  // its code is nowhere
    const Refusal missing = refusal_of([&] { to(format, prefix); });
    EXPECT_EQ(missing.code, ExitCode::kInputMissing);
    EXPECT_THAT(missing.text, HasSubstr("for an export: --set model.path=FILE"));
  }
  EXPECT_EQ(refusal_of([&] { to("safetensors", prefix); }).text, "");
  EXPECT_TRUE(manifest()["parameters_sha256"].is_null());
}

TEST_F(Exports, OtherNetworksHaveNoProgramOfTorchExport) {
  TrainedNetwork trained(digits());
  const std::string prefix = save(&trained);
  const Refusal refusal = refusal_of([&] { to("pt2", prefix); });
  EXPECT_EQ(refusal.code, ExitCode::kUsage);
  EXPECT_THAT(refusal.text, HasSubstr("--format pt2 is for networks in Python"));
  EXPECT_FALSE(std::filesystem::exists(at("out")));
}

TEST_F(Exports, SettingsAndTensorsMustBelongTogether) {
  const auto code_with = [&](const std::function<void(TrainedNetwork*)>& spoil,
                             const std::string& words) {
    TrainedNetwork trained(tests::network_cases()[5]);
    spoil(&trained);
    const std::string prefix = save(&trained);
    const Refusal refusal = refusal_of([&] { to("torchscript", prefix); });
    EXPECT_EQ(refusal.code, ExitCode::kBadData) << refusal.text;
    EXPECT_THAT(refusal.text, HasSubstr(words));
  };
  code_with([](auto* t) { t->settings += "\nmodel.depth=7"; },
            "no network can be built from its settings");
  code_with([](auto* t) { t->settings += "\nmodel.channels[x]=7"; }, "its settings");
  code_with([](auto* t) { t->settings += "\nmodel.channels[999999999999]=7"; }, "its settings");
  code_with([](auto* t) { t->settings += "\nmodel.hidden=8"; }, "hidden.weight is Float [7, ");
  code_with([](auto* t) { t->settings += "\nmodel.batch_norm=true"; },
            "needs blocks.0.norm.gamma, which it does not contain");
  code_with([](auto* t) { t->shape = "[2, 1, 1]"; }, "no network can be built from its settings");
  code_with([](auto* t) { t->shape = "[2, -7, 9]"; }, "not a list of counts");
  code_with([](auto* t) { t->shape = "images"; }, "is not a list");
  code_with([](auto* t) { t->num_classes = 5; }, "classifier");
  code_with([](auto* t) { t->leave_out("model/hidden/bias"); }, "needs hidden.bias");
  const at::Tensor more = at::ones({2});
  code_with([&](auto* t) { t->state.push_back({"model/more", more}); }, "1 tensors that its");
}

TEST_F(Exports, TorchScriptComputesWhatTheModelComputes) {
  for (const NetworkCase& c : tests::network_cases()) {
    TrainedNetwork trained(c);
    EXPECT_THAT(to("torchscript", save(&trained)).text, HasSubstr("TorchScript"));
    torch::jit::ExtraFilesMap extra = {{"step", ""}, {"source", ""}};
    torch::jit::Module module = torch::jit::load(at("out"), std::nullopt, extra);
    for (const int64_t num_samples : {0, 1, 6}) {
      const at::Tensor inputs = trained.inputs(num_samples);
      const at::Tensor found = module.forward({inputs}).toTensor(), own = trained.logits(inputs);
      // oneDNN chooses kernels by processor: on some, convolutions in groups (`branches`) get
      // others in TorchScript, and last bits differ.
      EXPECT_TRUE(at::equal(found, own) ||
                  (c.title == "branches" && at::allclose(found, own, 1e-5, 1e-6)))
          << c.title;
    }
    EXPECT_EQ(extra["step"], "30");
    EXPECT_EQ(extra["source"], "m-30");
    EXPECT_FALSE(module.is_training());
    size_t num_found = 0;
    for (const auto& param : module.named_parameters())
      for (const Param& own : trained.net->params())
        if (own.name == param.name) num_found += at::equal(own.tensor, param.value) ? 1 : 0;
    EXPECT_EQ(num_found, trained.net->params().size()) << c.title;
  }
}

TEST(SavedSettings, SayWhetherTheRunEvaluatedItsAverages) {
  const std::string averaged = "model.type=mlp\noptimizer.ema_decay=0.9\n";
  EXPECT_TRUE(evaluated_averages(averaged));
  EXPECT_FALSE(evaluated_averages("model.type=mlp\noptimizer.type=adam"));
  for (const bool uses : {true, false})
    for (const std::string& text :
         uses ? std::vector<std::string>{"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On",
                                         "ON"}
              : std::vector<std::string>{"false", "False", "FALSE", "no", "No", "NO", "off", "Off",
                                         "OFF"}) {
      ASSERT_EQ(parse_bool(text), uses);
      EXPECT_EQ(evaluated_averages("eval.use_ema=" + text + "\n" + averaged), uses) << text;
    }
  EXPECT_TRUE(evaluated_averages(averaged + "eval.use_ema_of_others=false\nx=eval.use_ema=false"));
}

TEST_F(Exports, LayersThatAFormatLacksAreNamed) {
  const PortableNetwork network{.layers = {{.kind = model::LayerKind::kRelu},
                                           {.kind = model::LayerKind::kOther, .name = "attention"}},
                                .input_shape = {3},
                                .num_classes = 3};
  const auto as_onnx = [&] { (void)onnx_bytes(network); };
  const auto as_torchscript = [&] { (void)torchscript_bytes(network); };
  for (const std::function<void()>& write :
       {std::function<void()>(as_onnx), std::function<void()>(as_torchscript)}) {
    const Refusal refusal = refusal_of(write);
    EXPECT_EQ(refusal.code, ExitCode::kUsage);
    EXPECT_THAT(refusal.text, HasSubstr("layer 2 of 2 (other 'attention') has no equivalent in"));
    EXPECT_THAT(refusal.text, HasSubstr("--format safetensors, tensorflow or pretrained"));
  }
}

class Undescribed final : public model::Model {
 public:
  at::Tensor forward(const at::Tensor& inputs_BX) override { return inputs_BX; }
};

TEST_F(Exports, ANetworkThatDoesNotDescribeItselfIsRefused) {
  const Refusal refusal = refusal_of([] { portable(Undescribed(), {3}, 3); });
  EXPECT_EQ(refusal.code, ExitCode::kUsage);
  EXPECT_THAT(refusal.text, HasSubstr("does not describe its layers (Model::network())"));
}

TEST_F(Exports, ANetworkHasTheFormatsThatItsDescriptionAllows) {
  EXPECT_EQ(possible_exports(Undescribed(), {3}), "safetensors, tensorflow, pretrained");
  for (const NetworkCase& c : tests::network_cases())
    EXPECT_EQ(possible_exports(*TrainedNetwork(c).net, c.input_shape),
              "safetensors, torchscript, onnx, tensorflow, pretrained")
        << c.title;
}

TEST_F(Exports, OptionsOfAnotherFormatAreRefused) {
  TrainedNetwork trained(digits());
  const std::string prefix = save(&trained);
  for (const char* format : {"onnx", "torchscript", "tensorflow"})
    EXPECT_EQ(refusal_of([&] {
                export_command(
                    {.where = prefix, .out_file = at("out"), .quantize = true, .format = format});
              }).code,
              ExitCode::kUsage);
  EXPECT_EQ(refusal_of([&] {
              export_command({.where = prefix, .out_file = at("out"), .all = true});
            }).code,
            ExitCode::kUsage);
  EXPECT_EQ(refusal_of([] { export_format("onx"); }).code, ExitCode::kUsage);
  for (const std::string& name : export_formats()) export_format(name);
}

TEST_F(Exports, PrunedWeightsThatAreNotZeroAreRefusedInEveryFormat) {
  TrainedNetwork trained(digits());
  const at::Tensor bits = at::full({18}, 0xfe, at::kByte);  // item 0 of each byte is pruned
  trained.state.push_back({"_lockstep/masks/blocks/0/conv/weight", bits});
  const std::string prefix = save(&trained);
  for (const std::string& name : export_formats()) {
    const Refusal refusal = refusal_of([&] { to(name, prefix); });
    EXPECT_EQ(refusal.code, ExitCode::kBadData);
    EXPECT_THAT(refusal.text, HasSubstr("18 of the 18 pruned weights of blocks.0.conv are not"));
  }
  EXPECT_FALSE(std::filesystem::exists(at("out")));
}

TEST_F(Exports, TensorFlowFilesHoldDenseTensorsUnderTheSameNames) {
  TrainedNetwork trained(digits());
  const at::Tensor bits = at::full({18}, 0x55, at::kByte), moment = at::rand({3});
  const at::Tensor values_K = at::rand({72});
  std::string form = "[16, 1, 3, 3] _lockstep/masks/blocks/0/conv/weight";
  trained.leave_out("model/blocks/0/conv/weight");
  trained.state.push_back({"_lockstep/masks/blocks/0/conv/weight", bits});
  trained.state.push_back({"_lockstep/sparse/model/blocks/0/conv/weight/values", values_K});
  trained.state.push_back({"_lockstep/sparse/model/blocks/0/conv/weight/form", {}, &form});
  trained.state.push_back({"optimizer/moment", moment});
  const std::string prefix = save(&trained);
  at::Tensor weight = at::ones({16, 1, 3, 3}), classifier = at::zeros({10, 256});
  const StateList of_model = {{"model/blocks/0/conv/weight", weight},
                              {"model/classifier/weight", classifier}};
  export_command({.where = prefix, .out_file = at("tf/m"), .format = "tensorflow"});
  EXPECT_EQ(checkpoint::restore(at("tf/m-30"), of_model).unused.size(), 6U);
  EXPECT_TRUE(at::equal(weight.view(-1).slice(0, 0, 144, 2), values_K));
  EXPECT_EQ(weight.view(-1).slice(0, 1, 144, 2).count_nonzero().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(classifier, trained.net->params()[6].tensor));
  EXPECT_EQ(checkpoint::read_state_file(at("tf"))->newest, "m-30");
  EXPECT_EQ(manifest("tf/m-30.json")["format"], "tensorflow");

  at::Tensor restored = at::zeros({3});
  std::string settings;
  export_command({.where = prefix, .out_file = at("all/m"), .all = true, .format = "tensorflow"});
  checkpoint::restore(at("all/m-30"),
                      {{"optimizer/moment", restored}, {"_lockstep/settings", {}, &settings}});
  EXPECT_TRUE(at::equal(restored, moment));
  EXPECT_EQ(settings, trained.settings);
}

TEST_F(Exports, TensorFlowFilesDoNotGoWhereTheSaveLies) {
  TrainedNetwork trained(digits());
  const std::string prefix = save(&trained);
  const std::string before = files::read(at("run/checkpoints/checkpoint"));
  for (const char* out : {"run/checkpoints/m", "run/checkpoints/../checkpoints/other"}) {
    const Refusal refusal = refusal_of(
        [&] { export_command({.where = prefix, .out_file = at(out), .format = "tensorflow"}); });
    EXPECT_EQ(refusal.code, ExitCode::kUsage);
    EXPECT_THAT(refusal.text, HasSubstr("write into another folder"));
  }
  EXPECT_EQ(files::read(at("run/checkpoints/checkpoint")), before);
}

TEST_F(Exports, TheManifestTellsWhereTheFileComesFrom) {
  TrainedNetwork trained(digits());
  const std::string prefix = save(&trained);
  to("onnx", prefix);
  const nlohmann::json facts = manifest();
  EXPECT_EQ(facts["format"], "onnx");
  EXPECT_EQ(facts["file"], "out");
  EXPECT_EQ(facts["num_bytes"], std::filesystem::file_size(at("out")));
  EXPECT_EQ(facts["source"], prefix);
  EXPECT_EQ(facts["step"], 30);
  EXPECT_EQ(facts["epoch"], 1.5);
  EXPECT_EQ(facts["sparsity"], 0.0);
  EXPECT_EQ(facts["parameters_sha256"], train::parameters_sha256(trained.net->params()));
  EXPECT_EQ(facts["input_shape"], nlohmann::json::array({1, 8, 8}));
  EXPECT_EQ(facts["num_classes"], 10);
  EXPECT_EQ(facts["tensors"].size(), 8U);
  EXPECT_TRUE(facts["train_loss"].is_null());
  EXPECT_TRUE(facts["eval"].is_null());
}

TEST_F(Exports, TheManifestTakesFiguresOfTheVerySave) {
  TrainedNetwork trained(digits());
  const std::string prefix = save(&trained);
  train::Summary summary{.steps = 30,
                         .train_loss = 0.25,
                         .eval = train::EvalResult{.loss = 0.5, .accuracy = 0.75, .num_samples = 8},
                         .parameters_sha256 = train::parameters_sha256(trained.net->params())};
  const auto with_summary = [&] {
    train::write_summary(at("run/summary.json"), summary);
    to("torchscript", prefix);
    return manifest();
  };
  EXPECT_EQ(with_summary()["eval"]["accuracy"], 0.75);
  EXPECT_EQ(manifest()["eval"]["loss"], 0.5);
  EXPECT_EQ(manifest()["train_loss"], 0.25);
  summary.steps = 31;
  EXPECT_TRUE(with_summary()["eval"].is_null()) << "another step's";
  summary.steps = 30;
  summary.parameters_sha256 = "0123";
  EXPECT_TRUE(with_summary()["eval"].is_null()) << "another run's";
  EXPECT_TRUE(manifest()["train_loss"].is_null());
  put("run/train/steps.csv",
      "step,epoch,loss,learning_rate,sparsity\n29,1.45,0.3,0.1,0\n30,1.5,0.125,0.1,0\n");
  EXPECT_EQ(with_summary()["train_loss"], 0.125);
  put("run/summary.json", "{\"steps\": ");
  put("run/train/steps.csv", "nonsense");
  to("torchscript", prefix);
  EXPECT_TRUE(manifest()["eval"].is_null());
  EXPECT_TRUE(manifest()["train_loss"].is_null());
}

}  // namespace exports_test
}  // namespace lockstep::exports
