#include "model/user_network.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>

#include <ATen/Context.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/random.h"

namespace lockstep::model {
namespace {

constexpr int64_t kForwardStream = 11;
constexpr std::array<std::string_view, 8> kPrunable = {
    "Linear",          "Conv1d",          "Conv2d",          "Conv3d",
    "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Bilinear"};

/// Last parts of the names of weights: plain, with torch.nn.utils (weight_norm, spectral_norm,
/// prune), and with parametrizations.weight_norm.
constexpr std::array<std::string_view, 4> kWeightNames = {"weight", "weight_v", "weight_orig",
                                                          "parametrizations.weight.original1"};

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// True if the name ends with one of kWeightNames as whole parts.
bool is_name_of_weight(const std::string& name) {
  const std::string dotted = "." + name;
  return std::any_of(kWeightNames.begin(), kWeightNames.end(), [&](std::string_view last) {
    return dotted.ends_with("." + std::string(last));
  });
}

}  // namespace

uint64_t seed_default_generators(int64_t seed, const ForwardPass& pass, at::Device device) {
  const uint64_t number =
      CounterRandom{seed, kForwardStream, pass.step}.bits(static_cast<uint64_t>(pass.first_sample));
  std::vector<at::Device> devices{at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const at::Device& one : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(one);
    // The generator's mutex: another thread of the process may draw from it.
    const std::scoped_lock lock(generator.mutex());
    generator.set_current_seed(number);
  }
  return number;
}

ParamUse use_of(const std::string& name, int64_t num_dims, const std::string& module_class) {
  const bool is_weight = num_dims >= 2 && !name.ends_with(".bias");
  const bool is_layer = std::any_of(kPrunable.begin(), kPrunable.end(), [&](std::string_view end) {
    return module_class.ends_with(end);
  });
  return {
      .prunable = is_weight && is_layer && is_name_of_weight(name),
      // The usual rule: no decay for biases, normalisations and embeddings.
      .decayed = is_weight && !holds(module_class, "Norm") && !holds(module_class, "Embedding")};
}

void add_param(const std::string& file, const std::string& name, const at::Tensor& tensor,
               const std::string& module_class, LayerTable* table) {
  const auto refuse = [&](const std::string& what, const char* way_out) {
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{}: parameter {} is {}: {}", file, name, what, way_out));
  };
  if (tensor.scalar_type() != at::kFloat)
    refuse(toString(tensor.scalar_type()),
           "weights are Float (float32) here; train.precision says in which type layers compute");
  if (!tensor.device().is_cpu())
    refuse("on " + tensor.device().str(),
           "build the network on the CPU, Lockstep moves it to the device of the run");
  const ParamUse use = use_of(name, tensor.dim(), module_class);
  table->params.push_back(
      {.name = name, .tensor = tensor, .prunable = use.prunable, .decayed = use.decayed});
}

}  // namespace lockstep::model
