// The C++ side of library_oracle.py: the MLP of that file, its layers as in torch::nn.
//   library_exchange save PREFIX...     an MLP after three steps of SGD, saved under each prefix in
//   turn; its output library_exchange restore SAVE       into the same objects; assert_consumed();
//   its output library_exchange again SAVE PREFIX  restore, then save under PREFIX; the new save's
//   name library_exchange latest DIR         latest_checkpoint() library_exchange import SAVE a
//   Keras model's weights, by name; the output
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/objects/checkpoint.h"
#include "checkpoint/objects/import_tensorflow.h"
#include "checkpoint/objects/torch_objects.h"
#include "checkpoint/restore/latest_checkpoint.h"

namespace {

using namespace lockstep::checkpoint;

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(3, 4));
    fc2 = register_module("fc2", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& inputs) { return fc2(at::tanh(fc1(inputs))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

at::Tensor inputs() { return at::arange(6, at::kFloat).reshape({2, 3}) / 6; }

struct Objects {
  Mlp model;
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  Checkpoint checkpoint{{{"model", model}, {"optimizer", optimizer}}};

  void train() {
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      model->forward(inputs()).pow(2).sum().backward();
      optimizer.step();
    }
  }
  void print_output() {
    const at::Tensor output = model->forward(inputs()).flatten();
    for (int64_t i = 0; i < output.numel(); ++i) fmt::print("{} ", output[i].item<double>());
    fmt::print("\n");
  }
};

lockstep::StateList keras_targets(Mlp& model) {
  lockstep::StateList list;
  for (const auto& named : model->named_parameters())
    list.push_back({.key = "model/" + lockstep::slashed(named.key()), .tensor = named.value()});
  return list;
}

int run(const std::vector<std::string>& words) {
  torch::manual_seed(11);
  Objects objects;
  if (words[0] == "save") {
    objects.train();
    for (size_t i = 1; i < words.size(); ++i) objects.checkpoint.save(words[i]);
    objects.print_output();
  } else if (words[0] == "restore") {
    objects.checkpoint.restore(words[1]).assert_consumed();
    objects.print_output();
  } else if (words[0] == "restore_weights") {
    Checkpoint({{"model", objects.model}}).restore(words[1]).assert_consumed();
    objects.print_output();
  } else if (words[0] == "again") {
    objects.checkpoint.restore(words[1]).assert_consumed();
    fmt::print("{}\n", objects.checkpoint.save(words.at(2)));
  } else if (words[0] == "latest") {
    fmt::print("{}\n", latest_checkpoint(words[1]).value_or("none"));
  } else if (words[0] == "import") {
    ImportOptions options{.allow_unused = {"optimizer/.*", ".*_CHECKPOINTABLE.*"}};
    for (const auto& [saved, key] :
         {std::pair("layers/first", "model/fc1"), {"layers/second", "model/fc2"}})
      for (const ImportRule& rule : rules_for_layer(saved, key)) options.rules.push_back(rule);
    import_tensorflow(words[1], keras_targets(objects.model), options);
    objects.print_output();
  } else {
    return 64;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  try {
    return run({argv + 1, argv + argc});
  } catch (const lockstep::Error& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return static_cast<int>(fault.code());
  }
}
