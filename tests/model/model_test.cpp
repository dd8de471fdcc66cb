#include "model/model.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"

namespace lockstep::model {
namespace model_test {

std::vector<std::string> names(const ParamTable& params) {
  std::vector<std::string> all;
  for (const Param& param : params) all.push_back(param.name);
  return all;
}

TEST(DigitsNet, HasTheDocumentedParameters) {
  const auto net = digits_net().make({{1, 8, 8}, 10, 17});
  EXPECT_EQ(names(net->params()),
            (std::vector<std::string>{"blocks.0.conv.weight", "blocks.0.conv.bias",
                                      "blocks.1.conv.weight", "blocks.1.conv.bias",
                                      "blocks.2.conv.weight", "blocks.2.conv.bias",
                                      "classifier.weight", "classifier.bias"}));
  int64_t num_parameters = 0;
  for (const Param& param : net->params()) {
    num_parameters += param.tensor.numel();
    EXPECT_TRUE(param.tensor.requires_grad());
    EXPECT_EQ(param.prunable, param.tensor.dim() >= 2) << param.name;
    EXPECT_EQ(param.decayed, param.tensor.dim() >= 2) << param.name;
  }
  EXPECT_EQ(num_parameters, 25'866);
}

TEST(DigitsNet, ComputesLogitsForAnyBatchSize) {
  const auto net = digits_net().make({{1, 8, 8}, 10, 17});
  for (const int64_t batch : {0, 1, 5})
    EXPECT_EQ(net->forward(at::rand({batch, 1, 8, 8})).sizes(), (std::vector<int64_t>{batch, 10}));
}

TEST(Model, InitialValuesFollowFromSeedAndName) {
  const ModelOptions options = mlp({.layers = {12, 6, 3}});
  const auto a = options.make({{3, 4}, 3, 17}), b = options.make({{3, 4}, 3, 17}),
             c = options.make({{3, 4}, 3, 18});
  for (size_t i = 0; i < a->params().size(); ++i) {
    EXPECT_TRUE(at::equal(a->params()[i].tensor, b->params()[i].tensor));
    EXPECT_FALSE(at::equal(a->params()[i].tensor, c->params()[i].tensor));
  }
  EXPECT_LE(a->params()[0].tensor.abs().max().item<float>(), 1 / std::sqrt(12.0F));
}

TEST(Mlp, IsLinearLayersWithAnActivationBetween) {
  const auto net = mlp({.layers = {4, 5, 2}, .activation = "tanh"}).make({{2, 2}, 2, 1});
  const at::Tensor inputs = at::rand({3, 2, 2});
  const ParamTable& p = net->params();
  const at::Tensor hidden = at::tanh(at::matmul(inputs.flatten(1), p[0].tensor.t()) + p[1].tensor);
  const at::Tensor expected = at::matmul(hidden, p[2].tensor.t()) + p[3].tensor;
  EXPECT_TRUE(at::allclose(net->forward(inputs), expected, 1e-5, 1e-6));
}

TEST(Cnn, HasTheDocumentedParameters) {
  const auto net = cnn().make({{3, 32, 32}, 10, 17});
  EXPECT_EQ(names(net->params()),
            (std::vector<std::string>{"blocks.0.conv.weight", "blocks.0.conv.bias",
                                      "blocks.1.conv.weight", "blocks.1.conv.bias",
                                      "blocks.2.conv.weight", "blocks.2.conv.bias",
                                      "blocks.3.conv.weight", "blocks.3.conv.bias", "hidden.weight",
                                      "hidden.bias", "classifier.weight", "classifier.bias"}));
  int64_t num_parameters = 0;
  for (const Param& param : net->params()) num_parameters += param.tensor.numel();
  EXPECT_EQ(num_parameters, 2'228'890);  // 1,792 + 36,928 + 73,856 + 147,584 + 1,966,320 + 2,410
  EXPECT_EQ(net->layers().size(), 6);
}

TEST(Cnn, ComputesLogitsForAnyBatchSizeAndImage) {
  const ModelOptions options = cnn({.channels = {4, 5, 6}, .hidden = 7});
  for (const int64_t batch : {0, 1, 3}) {
    const auto net = options.make({{2, 7, 9}, 4, 17});
    const at::Tensor logits = net->forward(at::rand({batch, 2, 7, 9}));
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{batch, 4}));
    logits.sum().backward();  // a rank without samples does this too
    for (const Param& param : net->params())
      EXPECT_EQ(param.tensor.grad().abs().sum().item<float>() > 0, batch > 0) << param.name;
  }
}

TEST(Cnn, IsConvolutionsPoolingAndTwoLinearLayers) {
  const auto net = cnn({.channels = {3, 4, 5}, .hidden = 6}).make({{1, 4, 6}, 2, 17});
  const ParamTable& p = net->params();
  const auto conv = [&](const at::Tensor& inputs, size_t i) {
    return at::conv2d(inputs, p[2 * i].tensor, p[2 * i + 1].tensor, 1, 1).clamp_min(0);
  };
  const at::Tensor inputs = at::rand({2, 1, 4, 6}) - 0.5;
  at::Tensor values = conv(conv(inputs, 0), 1);
  values = values.unfold(2, 2, 2).unfold(3, 2, 2).amax({4, 5});
  values = conv(values, 2).flatten(1);
  values = (values.matmul(p[6].tensor.t()) + p[7].tensor).clamp_min(0);
  values = values.matmul(p[8].tensor.t()) + p[9].tensor;
  EXPECT_TRUE(at::allclose(net->forward(inputs), values, 1e-5, 1e-6));
}

TEST(Model, DataThatDoesNotFitIsAConfigurationError) {
  EXPECT_THROW(digits_net().make({{784}, 10, 1}), Error);
  EXPECT_THROW(mlp({.layers = {64, 11}}).make({{1, 8, 8}, 10, 1}), Error);
  EXPECT_THROW(cnn().make({{3, 3, 32}, 10, 1}), Error);  // two poolings
  EXPECT_THROW(cnn().make({{32, 32}, 10, 1}), Error);
}

}  // namespace model_test
}  // namespace lockstep::model
