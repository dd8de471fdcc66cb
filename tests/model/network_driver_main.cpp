// The C++ side of network_oracle.py: one network with weights that it is sent.
//
//   network_driver SECTION SHAPE CLASSES float|int64 [REPETITIONS]
//
// SECTION: `model` of a run file; SHAPE: of one input, 3,32,32. Writes one line, "NAME EXTENTS..."
// of each parameter, then of each buffer, separated by semicolons. Then reads and writes tensors,
// little-endian, row-major, bare:
//   in   values of all parameters and buffers; int64 samples B; inputs [B, ...]; int64 size of the
//        outputs, and what they are multiplied by to make a loss
//   out  outputs in evaluation; outputs in training; gradients of all parameters; buffers after
//        the step
// With REPETITIONS, in seconds of the processor (float64) instead: each forward and backward pass.
#include <malloc.h>

#include <cstdio>
#include <ctime>
#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "tests/support/network_from_text.h"

namespace {

using lockstep::model::Model;

void read_tensor(at::Tensor values) {
  lockstep::check(std::fread(values.mutable_data_ptr(), values.element_size(), values.numel(),
                             stdin) == static_cast<size_t>(values.numel()),
                  "the oracle writes on");
}

int64_t read_count() {
  const at::Tensor count = at::empty({1}, at::kLong);
  read_tensor(count);
  return count.item<int64_t>();
}

void write_tensor(const at::Tensor& values) {
  const at::Tensor flat = values.detach().contiguous();
  lockstep::check(std::fwrite(flat.const_data_ptr(), flat.element_size(), flat.numel(), stdout) ==
                      static_cast<size_t>(flat.numel()),
                  "the oracle reads on");
}

/// Parameters, then buffers.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const Model& net) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& param : net.params()) all.emplace_back(param.name, param.tensor.detach());
  for (const auto& buffer : net.buffers()) all.emplace_back(buffer.name, buffer.tensor);
  return all;
}

void describe(const Model& net) {
  for (const auto& [name, tensor] : tensors_of(net)) {
    std::printf("%s", name.c_str());
    for (const int64_t extent : tensor.sizes())
      std::printf(" %lld", static_cast<long long>(extent));
    std::printf(";");
  }
  std::printf("\n");
  std::fflush(stdout);
}

/// Zeroes gradients as a run does: they stay defined, and layers that support it overwrite them.
void zero_gradients(const Model& net) {
  for (const auto& param : net.params()) {
    at::Tensor& grad = at::Tensor(param.tensor).mutable_grad();
    if (!grad.defined())
      grad = at::zeros_like(param.tensor);
    else if (param.grad_in_place == nullptr)
      grad.zero_();
    if (param.grad_in_place != nullptr) param.grad_in_place->is_stale = true;
  }
}

class Driver {
 public:
  Driver(Model& net, std::vector<int64_t> shape, at::ScalarType dtype) : net_(net) {
    for (const auto& [name, tensor] : tensors_of(net)) read_tensor(tensor);
    shape.insert(shape.begin(), read_count());
    inputs_ = at::empty(shape, dtype);
    read_tensor(inputs_);
    factors_ = at::empty({read_count()});
    read_tensor(factors_);
  }

  void answer() {
    net_.set_training(false);
    {
      const at::NoGradGuard no_grad;
      write_tensor(net_.forward(inputs_));
    }
    net_.set_training(true);
    write_tensor(step());
    for (const auto& param : net_.params()) write_tensor(param.tensor.grad());
    net_.batch_norms().update(net_.batch_norms().take_seen());
    for (const auto& buffer : net_.buffers()) write_tensor(buffer.tensor);
  }

  void time(int num_repetitions) {
    for (int i = 0; i < num_repetitions; ++i) {
      const std::clock_t begin = std::clock();
      (void)step();
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      write_tensor(at::full({1}, seconds, at::kDouble));
    }
  }

 private:
  at::Tensor step() {
    zero_gradients(net_);
    at::Tensor outputs = net_.forward(inputs_);
    (outputs.flatten() * factors_).sum().backward();
    return outputs.detach();
  }

  Model& net_;
  at::Tensor inputs_, factors_;
};

std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) numbers.push_back(std::stoll(part));
  return numbers;
}

int run(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  const std::vector<int64_t> shape = numbers_in(arguments.at(1));
  const at::ScalarType dtype = arguments.at(3) == "int64" ? at::kLong : at::kFloat;
  const auto net = lockstep::tests::network(arguments.at(0))
                       .make({.input_shape = shape,
                              .num_classes = std::stoll(arguments.at(2)),
                              .input_dtype = dtype});
  describe(*net);
  Driver driver(*net, shape, dtype);
  mallopt(M_MMAP_MAX, 0);  // as lockstepd does: freed memory is kept for the next pass
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (arguments.size() > 4)
    driver.time(std::stoi(arguments[4]));
  else
    driver.answer();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "network_driver: %s\n", fault.what());
    return 1;
  }
}
