// Save while training, restore to use: a multilayer perceptron for the handwritten digits.
//   digits_mlp --mode=train FOLDER [BATCHES]   saves every 100 batches; resumes where the newest
//                                              save ends, for BATCHES (300) more
//   digits_mlp --mode=test FOLDER              restores the newest save; its accuracy
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/restore.h"
#include "checkpoint/torch_objects.h"
#include "data/dataset.h"
#include "data/dataset_table.h"
#include "model/lazy_layers.h"

namespace {

using lockstep::checkpoint::Checkpoint;
using lockstep::checkpoint::latest_checkpoint;

constexpr int64_t kBatch = 64, kSaveEvery = 100;

/// Network of two lazy layers: the outputs are given, the number of inputs is taken from the first
/// batch.
struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    return classes(at::gelu(hidden(images.flatten(1))));
  }
  lockstep::model::LazyLinear hidden = register_module("hidden", lockstep::model::LazyLinear(100));
  lockstep::model::LazyLinear classes = register_module("classes", lockstep::model::LazyLinear(10));
};
TORCH_MODULE(Mlp);

lockstep::data::Samples all_of(const std::string& split) {
  const auto dataset = std::make_unique<lockstep::data::DigitsDataset>(split, "");
  std::vector<int64_t> indices(static_cast<size_t>(dataset->num_samples()));
  std::iota(indices.begin(), indices.end(), 0);
  return dataset->get(indices, /*epoch=*/0);
}

void train(const std::string& folder, int64_t num_batches) {
  torch::manual_seed(17);
  const lockstep::data::Samples data = all_of("train");
  Mlp model;
  at::Tensor batch = at::zeros({}, at::kLong);  // how many there were, over all starts
  Checkpoint checkpoint({{"model", model}, {"batch", batch}}, {.keep_checkpoint_max = 5});
  // Before the model has any weights: they take their values when the first batch makes them.
  if (const auto newest = latest_checkpoint(folder)) checkpoint.restore(*newest);
  (void)model->forward(data.inputs_BX.narrow(0, 0, 1));
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  checkpoint.add("optimizer", optimizer);

  for (const int64_t end = batch.item<int64_t>() + num_batches; batch.item<int64_t>() < end;) {
    const at::Tensor chosen = at::randint(data.targets_BY.size(0), {kBatch}, at::kLong);
    optimizer.zero_grad();
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(model->forward(data.inputs_BX.index_select(0, chosen)),
                                             data.targets_BY.index_select(0, chosen));
    loss.backward();
    optimizer.step();
    batch.add_(1);
    if (batch.item<int64_t>() % kSaveEvery == 0)
      fmt::print("batch {}: loss {:.4f}, saved {}\n", batch.item<int64_t>(), loss.item<double>(),
                 checkpoint.save(folder + "/model.ckpt"));
  }
}

void test(const std::string& folder) {
  const auto newest = latest_checkpoint(folder);
  if (!newest)
    throw lockstep::Error(lockstep::ExitCode::kInputMissing, "digits_mlp",
                          "no checkpoints in " + folder + ": run digits_mlp --mode=train first");
  const torch::NoGradGuard no_grad;
  const lockstep::data::Samples data = all_of("test");
  Mlp model;
  Checkpoint checkpoint({{"model", model}});
  const auto status = checkpoint.restore(*newest).expect_partial();  // no optimizer here
  const at::Tensor right = model->forward(data.inputs_BX).argmax(1).eq(data.targets_BY);
  status.assert_existing_objects_matched();  // they exist now
  fmt::print("{}: accuracy {:.4f}\n", *newest, right.to(at::kFloat).mean().item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  try {
    if (mode == "--mode=train" && argc <= 4)
      train(argv[2], argc > 3 ? std::stoll(argv[3]) : 300);
    else if (mode == "--mode=test" && argc == 3)
      test(argv[2]);
    else
      throw lockstep::Error(lockstep::ExitCode::kUsage, "digits_mlp",
                            "usage: digits_mlp --mode=train FOLDER [BATCHES], or "
                            "digits_mlp --mode=test FOLDER");
    return 0;
  } catch (const lockstep::Error& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return static_cast<int>(fault.code());
  }
}
