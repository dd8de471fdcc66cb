#include "model/networks/user_network.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "base/error.h"
#include "base/random.h"
#include "base/yaml/yaml_document.h"

namespace lockstep::model {
namespace {

constexpr int64_t kForwardStream = 11;
constexpr std::array<std::string_view, 9> kPrunable = {
    "Linear",          "Conv1d",          "Conv2d",   "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "Bilinear", "Conv1D"};  // of transformers

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
    refuse(
        toString(tensor.scalar_type()),
        "weights must be Float (float32); train.precision sets the type in which layers compute");
  if (!tensor.device().is_cpu())
    refuse("on " + tensor.device().str(),
           "build the network on the CPU; Lockstep moves it to the device of the run");
  const ParamUse use = use_of(name, tensor.dim(), module_class);
  table->params.push_back(
      {.name = name, .tensor = tensor, .prunable = use.prunable, .decayed = use.decayed});
}

namespace {

/// LibTorch's message without its C++ stack.
std::string words_of(const c10::Error& fault) {
  const std::string text = fault.what_without_backtrace();
  return text.substr(0, text.find("\nException raised from"));
}

/// Loads an archive. Throws Error(kInputMissing) if it does not exist, Error(kConfig) with
/// LibTorch's message if it is not such an archive or uses an unknown operator.
torch::jit::Module load_script(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    throw Error(ExitCode::kInputMissing, "model",
                fmt::format("{}: no such file, which 'model.path' names", path));
  try {
    return torch::jit::load(path, at::kCPU);
  } catch (const c10::Error& fault) {
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{}: LibTorch cannot load it as TorchScript: {}; save it with "
                            "torch.jit.script(net).save(...)",
                            path, words_of(fault)));
  }
}

/// Class name: Conv2d of __torch__.torch.nn.modules.conv.Conv2d, without a mangling number.
std::string class_of(const torch::jit::Module& module) {
  const auto name = module.type()->name();
  return name ? name->name() : "";
}

/// Returns the module that owns a parameter of this name.
torch::jit::Module owner_of(torch::jit::Module module, const std::string& name) {
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    module = module.attr(name.substr(begin, dot - begin)).toModule();
    begin = dot + 1;
  }
  return module;
}

/// Network of `model: {type: torchscript}`: a module that Python saved with torch.jit.save,
/// scripted or traced in training mode. It is trained, pruned and saved like Lockstep's own
/// networks. Names are those of state_dict(); a tied weight has its first one. Buffers that forward
/// changes, as in batch normalisation, are made equal on all ranks after each step.
class TorchScriptModel final : public Model {
 public:
  /// Loads the file. Throws Error(kConfig) too if no parameter is trained.
  TorchScriptModel(const std::string& path, const ModelInputs& data)
      : module_(load_script(path)), path_(path), seed_(data.seed) {
    module_.train();
    std::set<const at::TensorImpl*> entered;  // tied tensors count once, under their first name
    const auto is_new = [&](const at::Tensor& tensor) {
      return entered.insert(tensor.unsafeGetTensorImpl()).second;
    };
    const auto add_buffer = [&](const std::string& name, const at::Tensor& tensor) {
      table_.buffers.push_back({.name = name, .tensor = tensor, .moved_by_forward = true});
    };
    for (const auto& parameter : module_.named_parameters()) {
      if (!is_new(parameter.value)) continue;
      // A frozen parameter is entered as a buffer: it has no gradient but must be saved.
      if (parameter.value.requires_grad()) {
        add_param(path, parameter.name, parameter.value,
                  class_of(owner_of(module_, parameter.name)), &table_);
      } else {
        add_buffer(parameter.name, parameter.value);
        frozen_.push_back(parameter.name);
      }
    }
    for (const auto& buffer : module_.named_buffers())
      if (is_new(buffer.value)) add_buffer(buffer.name, buffer.value);
    if (table_.params.empty() && !data.may_be_frozen)
      throw Error(
          ExitCode::kConfig, "model",
          fmt::format("{}: has no trained parameter: was it frozen, or saved by torch.jit.freeze?",
                      path));
  }

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    // The executor would compile different code after the first runs, with different bits. A
    // resumed run would then not repeat an uninterrupted one. The option is set only here, because
    // LibTorch's freeze() breaks networks while it is set.
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    try {
      // Errors of user code become errors of the configuration, with the file's name.
      const c10::IValue outputs = module_.forward({inputs_BX});
      if (outputs.isTensor()) return outputs.toTensor();
      throw Error(
          ExitCode::kConfig, "model",
          fmt::format("{}: its forward returns {}, not a tensor", path_, outputs.tagKind()));
    } catch (const c10::Error& fault) {
      refuse_forward(words_of(fault));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& fault) {
      refuse_forward(fault.what());
    }
  }

  void begin_forward(const ForwardPass& pass) override {
    // TorchScript draws from LibTorch's generators, not from Lockstep's counters.
    (void)seed_default_generators(seed_, pass, device_);
  }

  void set_training(bool training) override {
    Model::set_training(training);
    module_.train(training);
  }

  /// Looks the buffers up by name: an assignment in forward replaces the tensor object.
  const std::vector<Buffer>& buffers() const override {
    buffers_ = table_.buffers;
    for (Buffer& buffer : buffers_) {
      const std::string last = buffer.name.substr(buffer.name.rfind('.') + 1);
      buffer.tensor = owner_of(module_, buffer.name).attr(last).toTensor();
    }
    return buffers_;
  }
  std::vector<std::string> frozen_params() const override { return frozen_; }

  void move_buffers_to(at::Device device) override {
    device_ = device;
    if (device.is_cpu()) return;
    for (Buffer& buffer : table_.buffers) buffer.tensor.set_data(buffer.tensor.to(device));
  }

  bool runs_user_code() const override { return true; }
  std::string torchscript_archive() const override {
    std::ostringstream bytes;
    module_.save(bytes);
    return std::move(bytes).str();
  }

 private:
  [[noreturn]] void refuse_forward(const std::string& why) const {
    throw Error(ExitCode::kConfig, "model", fmt::format("{}: its forward fails: {}", path_, why));
  }

  torch::jit::Module module_;
  std::string path_;
  int64_t seed_;
  at::Device device_ = at::kCPU;
  std::vector<std::string> frozen_;
  mutable std::vector<Buffer> buffers_;  ///< as of the last call of buffers()
};

}  // namespace

ModelType torchscript_type() {
  return {"torchscript", [](ConfigReader* in) -> MakeModel {
            std::string path;
            in->require("path");
            in->read("path", &path, "torchscript: archive");
            path = path_beside(in->document(), path).string();
            return [path](const ModelInputs& data) {
              return std::make_unique<TorchScriptModel>(path, data);
            };
          }};
}

}  // namespace lockstep::model
