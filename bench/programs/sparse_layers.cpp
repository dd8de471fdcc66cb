// Layers with kept weights against oneDNN's dense ones and MKL's sparse products, on one thread:
//   sparse_layers [WORD]    only kinds that begin with WORD
//   sparse_layers one OUTPUTS INPUTS KERNEL SIZE BATCH GROUPS STRIDE DENSITY    one layer
//
// Prints a line for each layer and density: its numbers, then microseconds of each way, least of
// several runs; 0: does not apply. The first line has this machine's limits: multiply-adds and
// bytes of memory in a microsecond.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "infer/sparse/layer.h"

namespace {

using namespace lockstep;

struct Shape {
  const char* kind;
  int64_t outputs, inputs, kernel, size, batch, groups, stride;
};

template <typename Function>
double least_us(const Function& function) {
  constexpr int kRuns = 15;
  double least = std::numeric_limits<double>::infinity();
  for (int i = -2; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    if (i >= 0) least = std::min(least, taken.count());
  }
  return least;
}

/// Multiply-adds of a large dense product in a microsecond, as the peak that oneDNN reaches.
double peak_macs() {
  constexpr int64_t kSize = 768;
  const at::Tensor a = at::randn({kSize, kSize}), b = at::randn({kSize, kSize});
  const double us = least_us([&] { (void)at::mm(a, b); });
  return kSize * kSize * kSize / us;
}

/// Bytes of a large tensor that are read in a microsecond.
double bandwidth() {
  const at::Tensor large = at::ones({int64_t{1} << 27});
  return static_cast<double>(large.nbytes()) / least_us([&] { (void)large.sum(); });
}

/// MKL's product of a sparse matrix with the pixels of one sample.
double mkl_us(const infer::Layer& layer, const at::Tensor& inputs) {
  const bool fits = layer.weight.size(2) == 1 && layer.groups == 1 && inputs.size(0) > 0;
  if (!fits || layer.stride[0] != 1 || (!layer.is_linear && inputs.size(0) != 1)) return 0;
  const at::Tensor pixels =
      layer.is_linear ? inputs.t().contiguous() : inputs[0].flatten(1).contiguous();
  const at::Tensor sparse = layer.weight.flatten(1).to_sparse_csr();
  return least_us([&] { (void)at::mm(sparse, pixels); });
}

void measure(const Shape& shape, double density) {
  infer::Layer layer{.name = shape.kind};
  layer.is_linear = shape.size == 0;
  const int64_t k = shape.kernel;
  layer.weight = at::randn({shape.outputs, shape.inputs / shape.groups, k, k});
  layer.weight.mul_(at::rand(layer.weight.sizes()) < density);
  layer.bias = at::randn({shape.outputs});
  layer.stride = {shape.stride, shape.stride};
  layer.pads = {k / 2, k / 2, k / 2, k / 2};
  layer.groups = shape.groups;
  layer.low = 0;
  const at::Tensor inputs = layer.is_linear
                                ? at::randn({shape.batch, shape.inputs})
                                : at::randn({shape.batch, shape.inputs, shape.size, shape.size});
  infer::DenseLayer dense(layer);
  infer::KeptLayer kept(layer);
  infer::Workspace workspace;
  // As within a network: each way finds the layout that it writes.
  const infer::Activations for_dense{
      layer.is_linear ? inputs : inputs.contiguous(at::MemoryFormat::ChannelsLast), std::nullopt};
  infer::Activations for_kept{inputs, std::nullopt};
  if (!layer.is_linear) {
    const infer::Planes planes =
        infer::Planes::make(shape.batch, inputs.sizes().slice(2), {k / 2, k / 2});
    for_kept = {planes.allocate(shape.inputs, 0, at::kFloat, &workspace.arena), planes};
    infer::copy_pixels(inputs, for_kept.tensor);
  }
  const double dense_us = least_us([&] { (void)dense.run(for_dense, {}); });
  const double kept_us = least_us([&] { (void)kept.run(for_kept, {}, &workspace); });
  std::printf("%s %ld %ld %ld %ld %ld %ld %ld %.2f %.1f %.1f %.1f\n", shape.kind, shape.outputs,
              shape.inputs, k, shape.size, shape.batch, shape.groups, shape.stride, density,
              dense_us, kept_us, density < 1 ? mkl_us(layer, inputs) : 0);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  const std::string word = argc > 1 ? argv[1] : "";
  if (word == "one" && argc == 10) {
    std::vector<int64_t> sizes;
    for (int i = 2; i < 9; ++i) sizes.push_back(std::atoll(argv[i]));
    measure({"one", sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]},
            std::atof(argv[9]));
    return 0;
  }
  std::printf("limits %.0f %.0f\n", peak_macs(), bandwidth());
  const std::vector<Shape> shapes = {
      {"1x1", 64, 256, 1, 56, 1, 1, 1},       {"1x1", 256, 64, 1, 56, 1, 1, 1},
      {"1x1", 512, 128, 1, 28, 1, 1, 1},      {"1x1", 256, 1024, 1, 14, 1, 1, 1},
      {"1x1", 512, 2048, 1, 7, 1, 1, 1},      {"1x1", 2048, 1024, 1, 14, 1, 1, 2},
      {"3x3", 64, 64, 3, 56, 1, 1, 1},        {"3x3", 128, 128, 3, 28, 1, 1, 1},
      {"3x3", 256, 256, 3, 14, 1, 1, 1},      {"3x3", 512, 512, 3, 7, 1, 1, 1},
      {"3x3", 256, 256, 3, 28, 1, 1, 2},      {"linear", 4096, 4096, 1, 0, 1, 1, 1},
      {"linear", 4096, 4096, 1, 0, 16, 1, 1}, {"linear", 4096, 4096, 1, 0, 64, 1, 1}};
  for (const Shape& shape : shapes)
    for (const double density : {0.3, 0.2, 0.1, 0.05})
      if (std::string(shape.kind).starts_with(word)) measure(shape, density);
  for (const Shape& shape : {Shape{"depthwise", 64, 64, 3, 112, 1, 64, 1},
                             {"depthwise", 512, 512, 3, 14, 1, 512, 1},
                             {"depthwise", 128, 128, 3, 56, 1, 128, 2}})
    if (std::string(shape.kind).starts_with(word)) measure(shape, 1);
  return 0;
}
