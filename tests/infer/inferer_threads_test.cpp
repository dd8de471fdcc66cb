#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "infer/inferer.h"
#include "small_networks.h"

namespace lockstep::infer {
namespace inferer_threads_test {

using tests::feed_from;
using tests::tensor_in;

/// inputs [B, 3] -> logits [B, 1024]: large enough for several threads of the network at once.
LoadedNetwork wide_network() {
  torch::jit::Module module("Wide");
  at::manual_seed(5);
  module.register_parameter("first", at::randn({3, 1024}), false);
  module.register_parameter("second", at::randn({1024, 1024}), false);
  module.register_attribute("training", c10::BoolType::get(), false);
  module.define(R"(def forward(self, inputs: Tensor) -> Tensor:
    return torch.matmul(torch.relu(torch.matmul(inputs, self.first)), self.second)
)");
  return {
      .source = "wide",
      .nodes = {{{.name = "inputs", .shape = {-1, 3}}}, {{.name = "logits", .shape = {-1, 1024}}}},
      .module = std::make_shared<torch::jit::Module>(module)};
}

/// Batches of very different sizes, so that a thread with a small one is ready before the others.
class UnevenFeeder final : public DataFeeder {
 public:
  std::optional<coord::DataMap> next() override {
    constexpr int64_t kNumBatches = 60;
    if (num_given_ == kNumBatches) return std::nullopt;
    const int64_t number = num_given_++;
    return feed_from(static_cast<double>(number), number % 3 == 0 ? 500 : 1);
  }

 private:
  int64_t num_given_ = 0;
};

class LogitsRecorder final : public coord::Callback {
 public:
  explicit LogitsRecorder(std::vector<at::Tensor>* logits) : logits_(*logits) {}
  std::vector<std::string> incoming_keys() const override { return {"logits"}; }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    logits_.push_back(tensor_in(data, "logits"));
    return coord::DataMap();
  }

 private:
  std::vector<at::Tensor>& logits_;
};

std::vector<at::Tensor> logits_of_uneven_batches(bool staged) {
  std::vector<at::Tensor> logits;
  std::vector<coord::NamedCallback> callbacks;
  callbacks.push_back({"recorder", std::make_unique<LogitsRecorder>(&logits)});
  coord::CallbacksHandler handler(std::move(callbacks), {"inputs", "logits"},
                                  {.mode = coord::Mode::kInfer, .log_dir = "nowhere"});
  UnevenFeeder feeder;
  InfererOptions options;
  options.use_multiprocessing = staged;
  Inferer inferer(wide_network(), at::kCPU, feeder, handler, options);
  EXPECT_TRUE(inferer.predictor().takes_many_threads());
  (void)inferer.run();
  return logits;
}

TEST(Inferer, IterationsThatAreComputedAtOnceKeepTheirOrderAndBits) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(3);
  const std::vector<at::Tensor> in_turn = logits_of_uneven_batches(/*staged=*/false);
  const std::vector<at::Tensor> staged = logits_of_uneven_batches(/*staged=*/true);
  EXPECT_EQ(at::get_num_threads(), 3);  // given back
  at::set_num_threads(num_threads);
  ASSERT_EQ(staged.size(), 60U);
  ASSERT_EQ(in_turn.size(), staged.size());
  for (size_t i = 0; i < staged.size(); ++i) EXPECT_TRUE(at::equal(staged[i], in_turn[i])) << i;
}

}  // namespace inferer_threads_test
}  // namespace lockstep::infer
