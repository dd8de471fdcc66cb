// The peer of bench/peers/infer_engine.py: one network, batch after batch, on OMP_NUM_THREADS
// threads.
//   infer_engine MODEL INPUTS OUTPUTS ENGINE ITERATIONS EXTENT...    MODEL.pt or MODEL.onnx,
//   float32
//
// Prints seconds of a batch, the median, and seconds until the network was open. With the variable
// EXPLAIN, the engine's table follows.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include "base/files/files.h"
#include "infer/predictor.h"
#include "infer/saved_model.h"

namespace {

using namespace lockstep;

constexpr int kWarm = 5;

at::Tensor read_inputs(const std::string& path, const std::vector<int64_t>& shape) {
  std::string bytes = files::read(path);
  return at::from_blob(bytes.data(), shape, at::kFloat).clone();
}

double median_of(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

void measure(const std::vector<std::string>& words) {
  std::vector<int64_t> shape;
  for (size_t i = 5; i < words.size(); ++i) shape.push_back(std::stoll(words[i]));
  const at::Tensor inputs = read_inputs(words[1], shape);
  const auto opening = std::chrono::steady_clock::now();
  const infer::LoadedNetwork network =
      words[0].ends_with(".onnx") ? infer::open_onnx(words[0])
                                  : infer::LoadedNetwork{.source = words[0],
                                                         .module = infer::load_torchscript(
                                                             files::read(words[0]), words[0])};
  const auto engine = infer::make_engine(network, {.engine = words[3], .tensorrt = {}}, at::kCPU);
  if (words[3] == "sparse") (void)engine->run({inputs});  // chooses the layers
  const std::chrono::duration<double> open = std::chrono::steady_clock::now() - opening;
  std::vector<double> seconds;
  at::Tensor outputs;
  for (int i = -kWarm; i < std::stoi(words[4]); ++i) {
    const auto start = std::chrono::steady_clock::now();
    outputs = engine->run({inputs}).at(0);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (i >= 0) seconds.push_back(taken.count());
  }
  outputs = outputs.contiguous();
  files::write_atomically(words[2],
                          {static_cast<const char*>(outputs.const_data_ptr()), outputs.nbytes()});
  std::printf("%.9f %.3f\n", median_of(seconds), open.count());
  if (std::getenv("EXPLAIN") != nullptr) std::printf("%s", engine->explanation().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fputs("usage: infer_engine MODEL INPUTS OUTPUTS ENGINE ITERATIONS EXTENT...\n", stderr);
    return 64;
  }
  at::globalContext().setFlushDenormal(true);
  try {
    measure({argv + 1, argv + argc});
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 70;
  }
  return 0;
}
