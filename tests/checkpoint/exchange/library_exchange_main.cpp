// The C++ side of library_oracle.py: the MLP of that file, its layers as in torch::nn.
//   library_exchange save PREFIX...     an MLP after three steps of SGD, saved under each prefix in
//   turn; its output
//   library_exchange restore SAVE       into the same objects; assert_consumed(); its output
//   library_exchange again SAVE PREFIX  restore, then save under PREFIX; the new save's name
//   library_exchange latest DIR         latest_checkpoint()
//   library_exchange import SAVE        a Keras model's weights, by name; the output
//   library_exchange verify SAVE        "sound", or the first defect
//   library_exchange warm FILE KERNELS PART NAME=SHAPE...  as a warm start loads them; the values
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/import/import_tensorflow.h"
#include "checkpoint/import/load_weights.h"
#include "checkpoint/restore.h"
#include "checkpoint/torch_objects.h"

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

/// FILE KERNELS PART NAME=ROWS,COLUMNS...: loads the part of the file into variables of these
/// shapes, as a warm start does, and prints all numbers.
void print_warm_start(const std::vector<std::string>& words) {
  lockstep::StateList variables;
  std::set<std::string> kernels;
  for (size_t i = 3; i < words.size(); ++i) {
    const size_t mark = words[i].find('=');
    std::vector<int64_t> shape;
    std::istringstream dims(words[i].substr(mark + 1));
    for (std::string dim; std::getline(dims, dim, ',');) shape.push_back(std::stoll(dim));
    const std::string name = words[i].substr(0, mark);
    variables.push_back({.key = name, .tensor = at::zeros(shape)});
    if (name.ends_with(".weight") && !name.starts_with("table")) kernels.insert(name);
  }
  lockstep::Diagnostics faults;
  const std::string text =
      fmt::format("{{warm_start_ckpt: x, warm_start_kernels: {}, warm_start_rename: {{{}: ''}}}}",
                  words.at(1), words.at(2));
  lockstep::YamlDocument document = lockstep::YamlDocument::parse("options", text, &faults);
  lockstep::ConfigReader in(document.root(), "checkpoint", document, &faults);
  const WarmStartOptions options = read_warm_start_options(&in);
  faults.throw_if_any("config");
  const auto file = open_weights(words[0]);
  load_weights(*file, words[0], variables, kernels, options);
  for (const lockstep::StateEntry& variable : variables) {
    const at::Tensor flat = variable.tensor.flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) fmt::print("{} ", flat[i].item<float>());
  }
  fmt::print("\n");
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
  } else if (words[0] == "warm") {
    print_warm_start({words.begin() + 1, words.end()});
  } else if (words[0] == "verify") {
    const std::vector<std::string> defects = verify(words[1]);
    fmt::print("{}\n", defects.empty() ? "sound" : defects.front());
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
