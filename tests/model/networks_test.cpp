// Common properties of all networks of the table, and the sizes of the known ones.
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/networks/model_table.h"
#include "support/network_from_text.h"

namespace lockstep::model {
namespace networks_test {

using tests::network;

struct Case {
  const char* section;
  ModelInputs data;
};

const ModelInputs kTokens{.input_shape = {6}, .num_classes = 11, .input_dtype = at::kLong};

/// Each type, small.
std::vector<Case> small_networks() {
  const ModelInputs digits{.input_shape = {1, 8, 8}, .num_classes = 10};
  const ModelInputs mnist{.input_shape = {28, 28, 1}, .num_classes = 10};
  const ModelInputs images{.input_shape = {3, 32, 32}, .num_classes = 4};
  return {{"{type: digits_net}", digits},
          {"{type: mlp, layers: [64, 5, 10]}", digits},
          {"{type: cnn, channels: [3, 4], hidden: 5, batch_norm: true}", digits},
          {"{type: mnist_net}", mnist},
          {"{type: lenet}", images},
          {"{type: vgg11, hidden: 8}", images},
          {"{type: vgg16, hidden: 8}", images},
          {"{type: resnet18}", images},
          {"{type: resnet50, stem: cifar}", images},
          {"{type: mobilenet_v1, width_multiplier: 0.1}", images},
          {"{type: vit, patch_size: 8, num_layers: 2, num_heads: 2, hidden_dim: 8, mlp_dim: 12, "
           "dropout: 0.2, attention_dropout: 0.2}",
           images},
          {"{type: gpt, layers: 2, heads: 2, width: 8, dropout: 0.2}", kTokens}};
}

at::Tensor inputs_for(const ModelInputs& data, int64_t num_samples) {
  std::vector<int64_t> shape = data.input_shape;
  shape.insert(shape.begin(), num_samples);
  return data.input_dtype == at::kLong ? at::randint(data.num_classes, shape) : at::rand(shape);
}

int64_t num_parameters(const Model& net) {
  int64_t count = 0;
  for (const Param& param : net.params()) count += param.tensor.numel();
  return count;
}

void zero_gradients(const Model& net) {
  for (const Param& param : net.params())
    at::Tensor(param.tensor).mutable_grad() = at::zeros_like(param.tensor);
}

/// No weight of 0, so that gradients reach all layers.
void stir(const Model& net) {
  const at::NoGradGuard no_grad;
  for (const Param& param : net.params())
    at::Tensor(param.tensor).add_(at::rand_like(param.tensor), 0.02);
}

TEST(Networks, AllTypesAreAmongTheCases) {
  std::vector<std::string> types;
  for (const Case& c : small_networks()) types.push_back(network(c.section).type);
  types.emplace_back("torchscript");  // a file of the user's: torchscript_test trains one
  EXPECT_THAT(types, ::testing::UnorderedElementsAreArray(model_types().names()));
}

/// A rank without samples runs forward and backward too.
TEST(Networks, TrainOnAnyNumberOfSamples) {
  for (const Case& c : small_networks())
    for (const int64_t num_samples : {0, 1, 3}) {
      const auto net = network(c.section).make(c.data);
      stir(*net);
      zero_gradients(*net);
      const at::Tensor outputs = net->forward(inputs_for(c.data, num_samples));
      std::vector<int64_t> shape{num_samples, c.data.num_classes};
      if (c.data.input_dtype == at::kLong) shape.insert(shape.begin() + 1, c.data.input_shape[0]);
      EXPECT_EQ(outputs.sizes(), at::IntArrayRef(shape)) << c.section;
      outputs.square().sum().backward();
      double all = 0;
      for (const Param& param : net->params()) {
        const auto sum = param.tensor.grad().abs().sum().item<double>();
        EXPECT_TRUE(std::isfinite(sum)) << c.section << " " << param.name;
        all += sum;
      }
      EXPECT_EQ(all > 0, num_samples > 0) << c.section;
    }
}

TEST(Networks, EvaluationDoesNotDependOnTheOtherSamplesOrTheStep) {
  for (const Case& c : small_networks()) {
    const auto net = network(c.section).make(c.data);
    stir(*net);
    net->set_training(false);
    const at::Tensor inputs = inputs_for(c.data, 3), outputs = net->forward(inputs);
    net->begin_forward({.step = 7, .first_sample = 2});
    EXPECT_TRUE(
        at::allclose(net->forward(inputs.narrow(0, 1, 1)), outputs.narrow(0, 1, 1), 1e-4, 1e-5))
        << c.section;
  }
}

/// Networks without batch normalisation.
TEST(Networks, ABatchGivesTheSameHoweverItIsCut) {
  for (const Case& c : small_networks()) {
    const auto net = network(c.section).make(c.data);
    if (!net->batch_norms().empty()) continue;
    stir(*net);
    const at::Tensor inputs = inputs_for(c.data, 4);
    net->begin_forward({.step = 5, .first_sample = 8});
    const at::Tensor whole = net->forward(inputs);
    net->begin_forward({.step = 5, .first_sample = 9});
    EXPECT_TRUE(
        at::allclose(net->forward(inputs.narrow(0, 1, 3)), whole.narrow(0, 1, 3), 1e-4, 1e-5))
        << c.section;
  }
}

TEST(Networks, NumbersAndTokensAreNotMistakenForEachOther) {
  for (Case c : small_networks()) {
    c.data.input_dtype = c.data.input_dtype == at::kLong ? at::kFloat : at::kLong;
    EXPECT_THROW(network(c.section).make(c.data), Error) << c.section;
  }
}

/// Linear and convolution weights are pruned and decay, embeddings only decay, the rest neither.
TEST(Networks, PruneAndDecayWhatTheyShould) {
  for (const Case& c : small_networks()) {
    const auto net = network(c.section).make(c.data);
    for (const Param& param : net->params()) {
      const bool is_embedding = param.name.find("wte") != std::string::npos ||
                                param.name.find("wpe") != std::string::npos ||
                                param.name.ends_with("class_token") ||
                                param.name.ends_with("pos_embedding");
      EXPECT_EQ(param.decayed, param.tensor.dim() >= 2) << param.name;
      EXPECT_EQ(param.prunable, param.tensor.dim() >= 2 && !is_embedding) << param.name;
    }
  }
}

TEST(Networks, HaveTheKnownNumbersOfParameters) {
  const ModelInputs imagenet{.input_shape = {3, 224, 224}, .num_classes = 1000};
  const ModelInputs text{.input_shape = {1024}, .num_classes = 50257, .input_dtype = at::kLong};
  const std::vector<std::pair<Case, int64_t>> all = {
      {{"{type: resnet18}", imagenet}, 11'689'512},
      {{"{type: resnet50}", imagenet}, 25'557'032},
      {{"{type: vgg11}", imagenet}, 132'863'336},
      {{"{type: vgg16}", imagenet}, 138'357'544},
      {{"{type: mobilenet_v1}", imagenet}, 4'231'976},
      {{"{type: vit}", imagenet}, 86'567'656},
      {{"{type: gpt}", text}, 124'439'808},
      {{"{type: lenet}", {.input_shape = {1, 28, 28}, .num_classes = 10}}, 61'706},
      {{"{type: mnist_net}", {.input_shape = {1, 28, 28}, .num_classes = 10}}, 270'730}};
  for (const auto& [c, expected] : all)
    EXPECT_EQ(num_parameters(*network(c.section).make(c.data)), expected) << c.section;
}

TEST(Networks, BeginAsTheirOriginalsDo) {
  const auto deviation = [](const Model& net, const char* name) {
    for (const Param& param : net.params())
      if (param.name == name) return param.tensor.std().item<double>();
    ADD_FAILURE() << name;
    return 0.0;
  };
  const auto resnet =
      network("{type: resnet18}").make({.input_shape = {3, 32, 32}, .num_classes = 10});
  EXPECT_NEAR(deviation(*resnet, "layer4.0.conv1.weight") * std::sqrt(512 * 9 / 2.0), 1, 0.01);
  EXPECT_NEAR(deviation(*resnet, "fc.weight") * std::sqrt(512 * 3.0), 1, 0.05);
  const auto gpt = network("{type: gpt, layers: 8, heads: 4, width: 256}").make(kTokens);
  EXPECT_NEAR(deviation(*gpt, "transformer.h.7.mlp.c_fc.weight"), 0.02, 2e-4);
  EXPECT_NEAR(deviation(*gpt, "transformer.h.7.mlp.c_proj.weight"), 0.005, 5e-5);
}

TEST(Gpt, SeesNoTokenThatComesLaterAndTakesShorterTexts) {
  for (const bool training : {false, true}) {
    const auto net =
        network("{type: gpt, layers: 2, heads: 2, width: 8, dropout: 0.2}").make(kTokens);
    net->set_training(training);
    const at::Tensor tokens = at::randint(11, {2, 6});
    at::Tensor others = tokens.clone();
    others.select(1, 4).add_(1).remainder_(11);
    const at::Tensor a = net->forward(tokens), b = net->forward(others);
    EXPECT_TRUE(at::equal(a.narrow(1, 0, 4), b.narrow(1, 0, 4)));
    EXPECT_FALSE(at::equal(a.narrow(1, 4, 1), b.narrow(1, 4, 1)));
    EXPECT_EQ(net->forward(tokens.narrow(1, 0, 3)).sizes(), (at::IntArrayRef{2, 3, 11}));
  }
}

TEST(MnistNet, TakesItsChannelFirstOrLast) {
  const ModelOptions options = network("{type: mnist_net}");
  const auto first = options.make({.input_shape = {1, 28, 28}, .num_classes = 10}),
             last = options.make({.input_shape = {28, 28, 1}, .num_classes = 10});
  const at::Tensor images = at::rand({2, 1, 28, 28});
  EXPECT_TRUE(at::equal(first->forward(images), last->forward(images.permute({0, 2, 3, 1}))));
  EXPECT_EQ(first->params()[0].name, "mnist_net.blocks.conv0.conv.weight");
}

}  // namespace networks_test
}  // namespace lockstep::model
