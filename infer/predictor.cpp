#include "infer/predictor.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::infer {
namespace {

/// Samples begin to begin + length of every input.
std::vector<at::Tensor> part_of(const std::vector<at::Tensor>& inputs, int64_t begin,
                                int64_t length) {
  std::vector<at::Tensor> part;
  for (const at::Tensor& input : inputs) part.push_back(input.narrow(0, begin, length));
  return part;
}

int64_t num_samples_in(const std::vector<at::Tensor>& inputs, const std::string& source) {
  const int64_t num_samples = inputs.front().size(0);
  for (const at::Tensor& input : inputs)
    if (input.size(0) != num_samples)
      throw Error(ExitCode::kBadData, "infer",
                  fmt::format("{}: the inputs of one feed have {} and {} samples", source,
                              num_samples, input.size(0)));
  return num_samples;
}

std::string forms_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> forms;
  for (const at::Tensor& tensor : tensors)
    forms.push_back(
        fmt::format("{} [{}]", dtype_name(tensor.scalar_type()), fmt::join(tensor.sizes(), ", ")));
  return fmt::format("{}", fmt::join(forms, ", "));
}

/// Runs the engine. LibTorch's errors about shapes become errors of the feed or of the export.
std::vector<at::Tensor> run(EngineBackend& engine, const std::vector<at::Tensor>& inputs,
                            const std::string& source) {
  try {
    return engine.run(inputs);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& fault) {
    const std::string text = fault.what();
    throw Error(ExitCode::kBadData, "infer",
                fmt::format("{}: the network does not accept {}: {}", source, forms_of(inputs),
                            text.substr(0, text.find("\nException raised"))));
  }
}

}  // namespace

Predictor::Predictor(const LoadedNetwork& network, const EngineOptions& options, at::Device device)
    : source_(network.source),
      nodes_(network.nodes),
      max_batch_size_(options.tensorrt.max_batch_size),
      device_(device),
      engine_(make_engine(network, options, device)) {}

/// Computes large batches in parts and joins each output again.
std::vector<at::Tensor> Predictor::answer(const std::vector<at::Tensor>& inputs) {
  const int64_t num_samples = num_samples_in(inputs, source_);
  if (!max_batch_size_ || num_samples <= *max_batch_size_) return run(*engine_, inputs, source_);
  std::vector<std::vector<at::Tensor>> parts_of_outputs;
  for (int64_t begin = 0; begin < num_samples; begin += *max_batch_size_) {
    const auto outputs = run(
        *engine_, part_of(inputs, begin, std::min(*max_batch_size_, num_samples - begin)), source_);
    parts_of_outputs.resize(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) parts_of_outputs[i].push_back(outputs[i]);
  }
  std::vector<at::Tensor> joined_outputs;
  for (const auto& parts : parts_of_outputs) joined_outputs.push_back(at::cat(parts));
  return joined_outputs;
}

/// Requires one row per sample: callbacks compare answers with targets, or store single samples.
void Predictor::require_as_many(const std::vector<at::Tensor>& outputs, int64_t num_samples) const {
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].dim() == 0 || outputs[i].size(0) != num_samples)
      throw Error(
          ExitCode::kBadData, "infer",
          fmt::format(
              "{}: the network got {} samples, and its output '{}' is {}: dimension 0 of each "
              "output must be the samples; export a network with one output per sample",
              source_, num_samples, nodes_.outputs[i].name, forms_of({outputs[i]})));
}

coord::DataMap Predictor::predict(const coord::DataMap& feed) {
  std::vector<at::Tensor> inputs = inputs_in(feed, nodes_, source_);
  // The feed stays unchanged: callbacks get its tensors too.
  for (at::Tensor& input : inputs) input = input.to(device_);
  const std::vector<at::Tensor> outputs = answer(inputs);
  if (outputs.size() != nodes_.outputs.size())
    throw Error(ExitCode::kBadData, "infer",
                fmt::format("{}: the network returned {} outputs, its io_nodes.json names {}",
                            source_, outputs.size(), nodes_.outputs.size()));
  require_as_many(outputs, inputs.front().size(0));
  coord::DataMap answers;
  for (size_t i = 0; i < outputs.size(); ++i)
    answers.put(nodes_.outputs[i].name, outputs[i].to(at::kCPU));
  return answers;
}

}  // namespace lockstep::infer
