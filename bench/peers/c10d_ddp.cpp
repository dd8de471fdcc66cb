// PyTorch's DistributedDataParallel without Python, one rank: c10d's own Reducer over
// ProcessGroupGloo, driven from C++ as torch/nn/parallel/distributed.py drives it, so that a
// comparison on a tiny network is not one with Python.
//
// An MLP on the data, order and weights of ddp.py, and its `tuned` settings: static graph,
// gradients as views of the buckets, one fused SGD call, denormals as 0. RANK and WORLD_SIZE say
// who; rank 0 writes a JSON object to --out: seconds and loss (mean over ranks) of each step.
#define USE_C10D_GLOO  // as LibTorch was built; its header is empty otherwise
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "base/error.h"
#include "data/dataset_table.h"
#include "data/sampler.h"

namespace lockstep::bench {
namespace {

using Seconds = std::chrono::duration<double>;

struct Options {
  std::vector<int64_t> widths;
  int64_t samples = 0, batch = 0, steps = 0;
  double learning_rate = 0.01, momentum = 0.9, bucket_mb = 25;
  std::string weights, store, out;
};

Options read(int argc, char** argv) {
  Options options;
  CLI::App app{"c10d's Reducer over gloo on an MLP, one rank"};
  app.add_option("--widths", options.widths)->delimiter(',')->required();
  app.add_option("--samples", options.samples)->required();
  app.add_option("--batch", options.batch, "samples of each rank")->required();
  app.add_option("--steps", options.steps)->required();
  app.add_option("--learning-rate", options.learning_rate)->capture_default_str();
  app.add_option("--momentum", options.momentum)->capture_default_str();
  app.add_option("--bucket-mb", options.bucket_mb)->capture_default_str();
  app.add_option("--weights", options.weights, "a safetensors file, float32")->required();
  app.add_option("--store", options.store, "a file by which the ranks meet")->required();
  app.add_option("--out", options.out)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    std::exit(app.exit(fault));
  }
  return options;
}

int number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  check(text != nullptr, fmt::format("the environment has no {}", name));
  return std::atoi(text);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& store_path) {
  const int rank = number_from_environment("RANK"), size = number_from_environment("WORLD_SIZE");
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::FileStore>(store_path, size);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

/// Weight and bias of each layer, in the order of nn.Module.parameters().
std::vector<at::Tensor> read_parameters(const Options& options) {
  std::ifstream file(options.weights, std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header(header_bytes, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  const auto entries = nlohmann::json::parse(header);
  std::vector<at::Tensor> parameters;
  for (size_t layer = 0; layer + 1 < options.widths.size(); ++layer) {
    for (const char* part : {"weight", "bias"}) {
      const auto& entry = entries.at(fmt::format("layers.{}.{}", layer, part));
      check(entry.at("dtype") == "F32", "weights that are not float32");
      at::Tensor values = at::empty(entry.at("shape").get<std::vector<int64_t>>(), at::kFloat);
      file.seekg(static_cast<std::streamoff>(sizeof(header_bytes) + header_bytes +
                                             entry.at("data_offsets").at(0).get<uint64_t>()));
      file.read(static_cast<char*>(values.mutable_data_ptr()),
                static_cast<std::streamsize>(values.nbytes()));
      parameters.push_back(values.set_requires_grad(true));
    }
  }
  check(file.good(), "the file of weights is short");
  return parameters;
}

/// DistributedDataParallel(static_graph, gradient_as_bucket_view, bucket_cap_mb) and SGD(fused).
class Ddp {
 public:
  Ddp(const Options& options, const c10::intrusive_ptr<c10d::ProcessGroup>& group)
      : parameters_(read_parameters(options)), options_(options) {
    const std::vector<bool> none_sparse(parameters_.size(), false);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters_, {std::numeric_limits<size_t>::max()}, none_sparse);
    std::reverse(buckets.begin(), buckets.end());
    const auto cap_bytes = static_cast<int64_t>(options.bucket_mb * 1024 * 1024);
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters_, buckets, group, none_sparse, cap_bytes, /*find_unused_parameters=*/false,
        /*gradient_as_bucket_view=*/true, std::unordered_map<size_t, std::string>{}, cap_bytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>{});
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    reducer_->set_static_graph();
    for (const at::Tensor& parameter : parameters_) {
      momenta_.push_back(at::zeros_like(parameter));
      values_.push_back(parameter.detach());
    }
  }

  at::Tensor step(const at::Tensor& inputs, const at::Tensor& targets) {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    at::Tensor values = inputs;
    for (size_t i = 0; i < parameters_.size(); i += 2) {
      if (i > 0) values = values.relu();
      values = at::linear(values, parameters_[i], parameters_[i + 1]);
    }
    const at::Tensor loss = at::cross_entropy_loss(values, targets);
    reducer_->prepare_for_backward({});
    // A static graph is learned in the first backward, and all buckets leave at its end.
    if (is_first_)
      loss.register_hook([this](const at::Tensor&) {
        torch::autograd::Engine::get_default_engine().queue_callback(
            [this] { reducer_->delay_all_reduce(); });
      });
    loss.backward();
    update();
    return loss.detach();
  }

 private:
  void update() {
    const at::NoGradGuard no_grad;
    grads_.clear();
    for (const at::Tensor& parameter : parameters_) grads_.push_back(parameter.grad());
    at::_fused_sgd_(values_, grads_, momenta_, /*weight_decay=*/0, options_.momentum,
                    options_.learning_rate, /*dampening=*/0, /*nesterov=*/false,
                    /*maximize=*/false, /*is_first_step=*/is_first_);
    is_first_ = false;
  }

  std::vector<at::Tensor> parameters_, values_, momenta_, grads_;
  Options options_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  bool is_first_ = true;
};

/// Batches of the steps: this rank's part of each global batch.
std::vector<at::Tensor> batches_of(const Options& options, int rank, int num_ranks) {
  data::Sampler sampler(
      {.num_samples = options.samples, .global_batch_size = options.batch * num_ranks, .seed = 17});
  std::vector<at::Tensor> batches;
  for (int64_t step = 0; step < options.steps; ++step) {
    const std::vector<int64_t> all = sampler.next().indices;
    batches.push_back(at::tensor(all).narrow(0, rank * options.batch, options.batch).clone());
  }
  return batches;
}

void run(const Options& options) {
  const auto group = make_group(options.store);
  const data::RandomDataset dataset({options.widths.front()}, options.widths.back(),
                                    options.samples, 0);
  std::vector<int64_t> all_samples(static_cast<size_t>(options.samples));
  for (size_t i = 0; i < all_samples.size(); ++i) all_samples[i] = static_cast<int64_t>(i);
  const data::Samples samples = dataset.get(all_samples, 0);
  const auto batches = batches_of(options, group->getRank(), group->getSize());
  Ddp ddp(options, group);
  std::vector<at::Tensor> losses;
  std::vector<double> seconds;
  group->barrier()->wait();
  for (const at::Tensor& batch : batches) {
    const auto begin = std::chrono::steady_clock::now();
    losses.push_back(ddp.step(samples.inputs_BX.index_select(0, batch),
                              samples.targets_BY.index_select(0, batch)));
    seconds.push_back(Seconds(std::chrono::steady_clock::now() - begin).count());
  }
  std::vector<at::Tensor> sums{at::stack(losses).to(at::kDouble)};
  group->allreduce(sums)->wait();
  if (group->getRank() == 0) {
    const at::Tensor means = sums[0] / group->getSize();
    const auto* begin = means.const_data_ptr<double>();
    std::ofstream(options.out) << nlohmann::json{
        {"seconds", seconds}, {"losses", std::vector<double>(begin, begin + means.numel())}};
  }
  group->barrier()->wait();
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  const auto options = lockstep::bench::read(argc, argv);
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
  lockstep::bench::run(options);
  std::_Exit(EXIT_SUCCESS);  // as ddp.py: threads of gloo's are still there
}
