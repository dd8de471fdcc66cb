// The C++ side of torch_oracle.py: steps of the digits network under a recipe, each from the state
// that it is sent.
//
//   recal_torch_driver RECIPE STEPS_PER_EPOCH LEARNING_RATE
//
// Writes one line, "NAME EXTENTS..." of each parameter, separated by semicolons. Then reads a step
// and writes what came of it, until its input ends; tensors little-endian, row-major, bare:
//   in   int64 samples B; values of all parameters, then their momenta (float32);
//        inputs [B, 1, 8, 8] (float32), targets [B] (int64)
//   out  learning rate, target sparsity, loss (float64); values of all parameters (float32);
//        kept weights of all parameters as 1 and 0 (float32); smallest and largest input of
//        each layer as averaged so far (float32), 0 without quantization
#include <cstdio>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "model/networks/small_networks.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/scheduled_modifier_manager.h"

namespace {

using lockstep::Param;

constexpr double kMomentum = 0.9;

bool read_tensor(at::Tensor values) {
  return std::fread(values.mutable_data_ptr(), values.element_size(), values.numel(), stdin) ==
         static_cast<size_t>(values.numel());
}

void write_tensor(const at::Tensor& values) {
  const at::Tensor flat = values.detach().contiguous();
  lockstep::check(std::fwrite(flat.const_data_ptr(), flat.element_size(), flat.numel(), stdout) ==
                      static_cast<size_t>(flat.numel()),
                  "the oracle reads on");
}

class Driver {
 public:
  Driver(const std::string& recipe_file, int64_t steps_per_epoch, double learning_rate)
      : manager_(lockstep::recal::ScheduledModifierManager::from_yaml(recipe_file)),
        options_{.type = "momentum", .learning_rate = learning_rate, .momentum = kMomentum} {
    lockstep::Diagnostics faults;
    manager_.attach(net_.params(),
                    {.steps_per_epoch = steps_per_epoch,
                     .base_learning_rate = learning_rate,
                     .optimizer_type = options_.type,
                     .layers = net_.layers()},
                    &faults);
    faults.throw_if_any("recipe");
    net_.set_layer_hook(manager_.layer_hook());
    optimizer_ = lockstep::optim::make_optimizer(options_, arena_.buffers(), net_.params());
  }

  void describe() {
    for (const Param& param : net_.params()) {
      std::printf("%s", param.name.c_str());
      for (const int64_t extent : param.tensor.sizes())
        std::printf(" %lld", static_cast<long long>(extent));
      std::printf(";");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void finish() { manager_.finalize(step_, world_); }

  /// False where the input has ended.
  bool step() {
    at::Tensor num_samples = at::zeros({}, at::kLong);
    if (!read_tensor(num_samples)) return false;
    receive_state();
    at::Tensor inputs_B1HW = at::empty({num_samples.item<int64_t>(), 1, 8, 8});
    at::Tensor targets_B = at::empty({num_samples.item<int64_t>()}, at::kLong);
    lockstep::check(read_tensor(inputs_B1HW) && read_tensor(targets_B), "a whole step is sent");

    (void)manager_.apply_due(step_, world_);
    arena_.zero_grads();
    const at::Tensor loss = at::cross_entropy_loss(net_.forward(inputs_B1HW), targets_B);
    loss.backward();
    update();
    report(loss.item<double>());
    ++step_;
    return true;
  }

 private:
  void receive_state() {
    const at::NoGradGuard no_grad;
    bool whole = true;
    for (const Param& param : net_.params()) whole = read_tensor(param.tensor.detach()) && whole;
    for (size_t i = 0; i < net_.params().size(); ++i)
      whole = read_tensor(optimizer_->slots_of(static_cast<int64_t>(i)).at(0)) && whole;
    lockstep::check(whole, "a whole state is sent");
  }

  void update() {
    lockstep::optim::StepRates rates = lockstep::optim::initial_rates(options_);
    for (int group = 0; group < lockstep::kNumParamGroups; ++group)
      rates[static_cast<size_t>(group)].learning_rate = manager_.learning_rate_at(step_, group);
    manager_.mask_gradients();
    optimizer_->step(rates);
    manager_.end_step(/*updated=*/true, world_);
  }

  void report(double loss) {
    write_tensor(at::tensor(
        {manager_.learning_rate_at(step_), manager_.target_sparsity_at(step_), loss}, at::kDouble));
    for (const Param& param : net_.params()) write_tensor(param.tensor);
    for (size_t i = 0; i < net_.params().size(); ++i) {
      const at::Tensor kept = at::ones(net_.params()[i].tensor.sizes());
      manager_.zero_pruned(static_cast<int64_t>(i), kept);
      write_tensor(kept);
    }
    const lockstep::recal::FakeQuantizer* quantizer = manager_.quantizer().get();
    for (size_t layer = 0; layer < net_.layers().size(); ++layer) {
      lockstep::recal::InputRanges::Range range;
      if (quantizer != nullptr) range = quantizer->view(static_cast<int64_t>(layer)).input_range;
      write_tensor(at::tensor({range.min, range.max}));
    }
    std::fflush(stdout);
  }

  lockstep::dist::SelfCommunicator world_;
  const std::unique_ptr<lockstep::model::Model> owned_net_ =
      lockstep::model::digits_net().make({{1, 8, 8}, 10, 17});
  lockstep::model::Model& net_ = *owned_net_;
  lockstep::optim::FlatParams arena_{
      net_.params(), {{0, 2, 4, 6}, {1, 3, 5, 7}}, at::Device(at::kCPU)};
  lockstep::recal::ScheduledModifierManager manager_;
  lockstep::optim::OptimizerOptions options_;
  std::unique_ptr<lockstep::optim::Optimizer> optimizer_;
  int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  at::set_num_threads(1);
  try {
    Driver driver(argv[1], std::stoll(argv[2]), std::stod(argv[3]));
    driver.describe();
    while (driver.step()) {
    }
    driver.finish();
    return 0;
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
}
