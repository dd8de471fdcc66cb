#include "infer/engine.h"

#include <atomic>
#include <cstdlib>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "infer/predictor.h"
#include "infer/tensorrt.h"
#include "small_networks.h"

namespace lockstep::infer {
namespace engine_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::feed_from;
using tests::tensor_in;

/// A convolution, a batch normalisation and a ReLU, which the passes join.
LoadedNetwork conv_network(int64_t num_outputs = 4) {
  torch::jit::Module module("Conv");
  at::manual_seed(3);
  module.register_parameter("weight", at::randn({num_outputs, 2, 3, 3}), false);
  module.register_parameter("scale", at::rand({num_outputs}) + 0.5, false);
  module.register_parameter("shift", at::randn({num_outputs}), false);
  module.register_parameter("mean", at::randn({num_outputs}), true);
  module.register_parameter("variance", at::rand({num_outputs}) + 0.5, true);
  module.register_attribute("training", c10::BoolType::get(), false);
  module.define(R"(def forward(self, inputs: Tensor) -> Tensor:
    x = torch.conv2d(inputs, self.weight, None, [1, 1], [1, 1], [1, 1], 1)
    x = torch.batch_norm(x, self.scale, self.shift, self.mean, self.variance, False, 0.0, 1e-5, False)
    return torch.relu(x)
)");
  return {.source = "conv",
          .nodes = {{{.name = "inputs", .shape = {-1, 2, 5, 5}}},
                    {{.name = "logits", .shape = {-1, num_outputs, 5, 5}}}},
          .module = std::make_shared<torch::jit::Module>(module)};
}

at::Tensor answer_of(const LoadedNetwork& network, const EngineOptions& options,
                     const at::Tensor& inputs) {
  const auto engine = make_engine(network, options, at::kCPU);
  at::Tensor answer;
  for (int i = 0; i < 3; ++i) answer = engine->run({inputs}).at(0);  // the passes wait for a few
  return answer;
}

TEST(InferRows, N81_plain_engine_gives_the_operators_own_bits) {
  const LoadedNetwork network = conv_network();
  const at::Tensor inputs = at::randn({3, 2, 5, 5});
  const auto tensor = [&](const char* name) { return network.module->attr(name).toTensor(); };
  const at::Tensor expected = at::relu(
      at::batch_norm(at::conv2d(inputs, tensor("weight"), {}, 1, 1), tensor("scale"),
                     tensor("shift"), tensor("mean"), tensor("variance"), false, 0.0, 1e-5, false));
  EXPECT_TRUE(at::equal(answer_of(network, {.engine = "plain", .tensorrt = {}}, inputs), expected));
}

TEST(InferRows, N88_libtorchs_passes_stand_in_for_tensorrt) {
  const at::Tensor inputs = at::randn({3, 2, 5, 5});
  const at::Tensor plain = answer_of(conv_network(), {.engine = "plain", .tensorrt = {}}, inputs);
  const EngineOptions wanted{.engine = "optimized", .tensorrt = {.use_tensorrt = true}};
  EXPECT_LE((answer_of(conv_network(), wanted, inputs) - plain).abs().max().item<double>(), 1e-5);
  const std::string text = make_engine(conv_network(), wanted, at::kCPU)->description();
  EXPECT_THAT(text, HasSubstr("LibTorch's freeze and inference passes"));
  EXPECT_THAT(text, HasSubstr("no Torch-TensorRT: no GPU"));
}

TEST(InferRows, N88_a_module_that_cannot_be_opened_or_is_of_another_build_is_told) {
  const LoadedNetwork network = conv_network();
  const auto why_not = [&](const std::string& module) {
    ::setenv("LOCKSTEP_TENSORRT", module.c_str(), /*overwrite=*/1);
    const TensorrtAttempt attempt =
        try_tensorrt(*network.module, network.nodes, {.use_tensorrt = true}, at::Device("cuda:0"));
    ::unsetenv("LOCKSTEP_TENSORRT");
    EXPECT_EQ(attempt.module, nullptr);
    return attempt.why_not;
  };
  EXPECT_THAT(why_not("/nowhere/liblockstep_tensorrt.so"), HasSubstr("No such file"));
  EXPECT_THAT(why_not("libm.so.6"), HasSubstr("lockstep_tensorrt_compile"));
  EXPECT_THAT(why_not(LOCKSTEP_OTHER_TENSORRT),
              HasSubstr("is of build 'another', this program of"));
}

TEST(Engine, SmallAndLargeBatchesGiveTheNetworksNumbersAndAlwaysTheSameBits) {
  const auto engine = make_engine(conv_network(), {}, at::kCPU);
  std::vector<std::pair<at::Tensor, at::Tensor>> first_answers;
  for (const int64_t num_samples : {1, 20, 20000}) {  // the last is beyond a small batch
    const at::Tensor inputs = at::randn({num_samples, 2, 5, 5});
    for (int i = 0; i < 3; ++i) (void)engine->run({inputs});  // the passes wait for a few
    const at::Tensor plain = answer_of(conv_network(), {.engine = "plain", .tensorrt = {}}, inputs);
    first_answers.emplace_back(inputs, engine->run({inputs}).at(0));
    const at::Tensor difference = (first_answers.back().second - plain).abs().max();
    EXPECT_LE(difference.item<double>(), 1e-5 * plain.abs().max().item<double>()) << num_samples;
  }
  for (const auto& [inputs, answer] : first_answers)
    EXPECT_TRUE(at::equal(engine->run({inputs}).at(0), answer)) << inputs.size(0);
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
}

TEST(Engine, TheShapeOfTheFirstInputsIsFusedAndOthersAreComputedAllTheSame) {
  const LoadedNetwork network = conv_network(/*num_outputs=*/40000);
  const at::Tensor of_first_shape = at::randn({2, 2, 5, 5}), of_another = at::randn({3, 2, 5, 5});
  const auto engine = make_engine(network, {}, at::kCPU);
  ASSERT_TRUE(engine->takes_many_threads());
  const at::Tensor first = engine->run({of_first_shape}).at(0);
  const at::Tensor other = engine->run({of_another}).at(0);
  for (const auto& [inputs, answer] : {std::pair{of_first_shape, first}, {of_another, other}}) {
    const at::Tensor plain =
        make_engine(network, {.engine = "plain", .tensorrt = {}}, at::kCPU)->run({inputs}).at(0);
    EXPECT_LE((answer - plain).abs().max().item<double>(), 1e-5) << inputs.size(0);
  }
  std::vector<std::thread> threads;
  std::atomic<int> num_equal = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int turn = 0; turn < 3; ++turn) {
        num_equal += static_cast<int>(engine->run({of_first_shape}).at(0).equal(first));
        num_equal += static_cast<int>(engine->run({of_another}).at(0).equal(other));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_equal, 4 * 3 * 2);
}

TEST(FusedModule, IsForNetworksWithConvolutionsAndInputsOfOneForm) {
  const at::Tensor inputs = at::randn({3, 2, 5, 5});
  torch::jit::Module frozen = torch::jit::freeze(*conv_network().module);
  const auto fused = FusedModule::compile(frozen, {inputs});
  ASSERT_TRUE(fused);
  EXPECT_TRUE(fused->takes({at::zeros({3, 2, 5, 5})}));
  EXPECT_FALSE(fused->takes({at::zeros({4, 2, 5, 5})}));
  EXPECT_FALSE(fused->takes({at::zeros({3, 2, 5, 5}, at::kDouble)}));
  EXPECT_FALSE(fused->takes({at::zeros({3, 2, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast)}));
  const torch::jit::Module line = torch::jit::freeze(tests::line_module());
  EXPECT_FALSE(FusedModule::compile(line, {at::randn({4, 3})}));
}

TEST(InferRows, N89_tensorrt_is_off_unless_asked_for) {
  EXPECT_FALSE(EngineOptions().tensorrt.use_tensorrt);
  EXPECT_EQ(make_engine(conv_network(), {}, at::kCPU)->description(),
            "optimized: LibTorch's freeze and inference passes");
}

TEST(InferRows, N90_larger_batches_are_split) {
  LoadedNetwork network = tests::line_network();
  network.module = nullptr;
  std::vector<int64_t> sizes;
  network.forward = [&sizes](const at::Tensor& inputs_B3) {
    sizes.push_back(inputs_B3.size(0));
    return at::linear(inputs_B3, tests::weight_23());
  };
  for (const int64_t num_samples : {7, 3, 0}) {
    sizes.clear();
    EngineOptions options;
    options.tensorrt.max_batch_size = 3;
    Predictor predictor(network, options, at::kCPU);
    const coord::DataMap feed = feed_from(0, num_samples);
    const at::Tensor logits = tensor_in(predictor.predict(feed), "logits");
    EXPECT_TRUE(at::allclose(logits, at::linear(tensor_in(feed, "inputs"), tests::weight_23())));
    EXPECT_EQ(logits.size(0), num_samples);
    EXPECT_EQ(sizes, num_samples == 7 ? (std::vector<int64_t>{3, 3, 1})
                                      : (std::vector<int64_t>{num_samples}));
  }
}

TEST(InferRows, N79_a_predictor_answers_a_map_and_says_what_does_not_fit) {
  Predictor predictor(tests::line_network(), {}, at::kCPU);
  EXPECT_THAT(keys_of(predictor.nodes().outputs), ElementsAre("logits"));
  coord::DataMap feed;
  feed.put("inputs", at::zeros({2, 4}));
  try {
    (void)predictor.predict(feed);
    FAIL() << "a shape that does not fit was taken";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    EXPECT_THAT(fault.what(),
                HasSubstr("'inputs' is float32 [any, 3], the feed has float32 [2, 4]"));
  }
}

TEST(Predictor, Fewer_answers_than_samples_are_65) {
  LoadedNetwork network = tests::line_network();
  torch::jit::Module module("Mean");
  module.register_attribute("training", c10::BoolType::get(), false);
  module.define("def forward(self, inputs: Tensor) -> Tensor:\n    return inputs[1:]\n");
  network.module = std::make_shared<torch::jit::Module>(module);
  Predictor predictor(network, {.engine = "plain", .tensorrt = {}}, at::kCPU);
  try {
    (void)predictor.predict(feed_from(0, 4));
    FAIL() << "a network that leaves a sample out was taken";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    EXPECT_THAT(fault.what(),
                HasSubstr("got 4 samples, and its output 'logits' is float32 [3, 3]"));
  }
}

TEST(Predictor, OutputsThatIoNodesDoesNotNameAreRefused) {
  LoadedNetwork network = tests::line_network();
  network.nodes.outputs.push_back({.name = "more", .shape = {-1}});
  Predictor predictor(network, {}, at::kCPU);
  EXPECT_THROW((void)predictor.predict(feed_from(0, 2)), Error);
}

}  // namespace engine_test
}  // namespace lockstep::infer
