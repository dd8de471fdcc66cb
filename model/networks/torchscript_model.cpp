#include "model/networks/torchscript_model.h"

#include <filesystem>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "base/error.h"
#include "base/yaml/path_beside.h"
#include "model/user_network.h"

namespace lockstep::model {

struct TorchScriptModel::Loaded {
  torch::jit::Module module;
};

namespace {

/// LibTorch's message without its C++ stack.
std::string words_of(const c10::Error& fault) {
  const std::string text = fault.what_without_backtrace();
  return text.substr(0, text.find("\nException raised from"));
}

torch::jit::Module load(const std::string& path) {
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

}  // namespace

TorchScriptModel::TorchScriptModel(const std::string& path, const ModelInputs& data)
    : loaded_(new Loaded{load(path)}), path_(path), seed_(data.seed) {
  loaded_->module.train();
  std::set<const at::TensorImpl*> entered;  // tied tensors count once, under their first name
  const auto is_new = [&](const at::Tensor& tensor) {
    return entered.insert(tensor.unsafeGetTensorImpl()).second;
  };
  const auto add_buffer = [&](const std::string& name, const at::Tensor& tensor) {
    table_.buffers.push_back({.name = name, .tensor = tensor, .moved_by_forward = true});
  };
  for (const auto& parameter : loaded_->module.named_parameters()) {
    if (!is_new(parameter.value)) continue;
    // A frozen parameter is entered as a buffer: it has no gradient but must be saved.
    if (parameter.value.requires_grad()) {
      add_param(path, parameter.name, parameter.value,
                class_of(owner_of(loaded_->module, parameter.name)), &table_);
    } else {
      add_buffer(parameter.name, parameter.value);
      frozen_.push_back(parameter.name);
    }
  }
  for (const auto& buffer : loaded_->module.named_buffers())
    if (is_new(buffer.value)) add_buffer(buffer.name, buffer.value);
  if (table_.params.empty())
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{}: has no parameter that is trained: was it frozen, or saved by "
                            "torch.jit.freeze?",
                            path));
}

TorchScriptModel::~TorchScriptModel() = default;

at::Tensor TorchScriptModel::forward(const at::Tensor& inputs_BX) {
  // The executor would compile different code after the first runs, with different bits. A resumed
  // run would then not repeat an uninterrupted one. The option is set only here, because LibTorch's
  // freeze() breaks networks while it is set.
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  try {
    // Errors of user code become errors of the configuration, with the file's name.
    const c10::IValue outputs = loaded_->module.forward({inputs_BX});
    if (outputs.isTensor()) return outputs.toTensor();
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{}: its forward returns {}, not a tensor", path_, outputs.tagKind()));
  } catch (const c10::Error& fault) {
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{}: its forward fails: {}", path_, words_of(fault)));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& fault) {
    throw Error(ExitCode::kConfig, "model",
                fmt::format("{}: its forward fails: {}", path_, fault.what()));
  }
}

void TorchScriptModel::begin_forward(const ForwardPass& pass) {
  // TorchScript draws from LibTorch's generators, not from Lockstep's counters.
  (void)seed_default_generators(seed_, pass, device_);
}

void TorchScriptModel::set_training(bool training) {
  Model::set_training(training);
  loaded_->module.train(training);
}

const std::vector<Buffer>& TorchScriptModel::buffers() const {
  buffers_ = table_.buffers;
  for (Buffer& buffer : buffers_) {
    const std::string last = buffer.name.substr(buffer.name.rfind('.') + 1);
    // By name: an assignment in forward replaces the tensor object.
    buffer.tensor = owner_of(loaded_->module, buffer.name).attr(last).toTensor();
  }
  return buffers_;
}

void TorchScriptModel::move_buffers_to(at::Device device) {
  device_ = device;
  if (device.is_cpu()) return;
  for (Buffer& buffer : table_.buffers) buffer.tensor.set_data(buffer.tensor.to(device));
}

std::string TorchScriptModel::torchscript_archive() const {
  std::ostringstream bytes;
  loaded_->module.save(bytes);
  return std::move(bytes).str();
}

ModelType torchscript_type() {
  return {"torchscript", [](ConfigReader* in) -> MakeModel {
            std::string path;
            in->require("path");
            in->read("path", &path,
                     "torchscript: the archive; also looked for beside the run file");
            path = path_beside(in->document(), path).string();
            return [path](const ModelInputs& data) {
              return std::make_unique<TorchScriptModel>(path, data);
            };
          }};
}

}  // namespace lockstep::model
