#include "daemon/inference/checkpoint_network.h"

#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/config/version.h"
#include "daemon/exports/export.h"
#include "daemon/exports/saved_network.h"
#include "daemon/state/checkpoint_metadata.h"
#include "infer/network/saved_model.h"

namespace lockstep::daemon {
namespace {

namespace fs = std::filesystem;
using infer::IoNode;
using infer::LoadedNetwork;

/// Reads the weights that the run's evaluations used: the averages, if they used these.
SavedModel as_evaluated(const std::string& where) {
  SavedModel saved = read_saved_model(where);
  return evaluated_averages(saved.settings) ? read_saved_model(saved.prefix, /*ema=*/true) : saved;
}

/// Describes input and output; the first dimension is the batch.
infer::IoNodes nodes_of(const SavedNetwork& network, const std::string& input) {
  IoNode in{.name = input, .shape = {IoNode::kAny}, .dtype = network.input_dtype};
  in.shape.insert(in.shape.end(), network.input_shape.begin(), network.input_shape.end());
  // For tokens and other outputs, the network alone decides the extents.
  return {{in}, {{.name = "logits", .shape = {IoNode::kAny, network.num_classes}}}};
}

void move_to(at::Device device, model::Model& model) {
  const at::NoGradGuard no_grad;
  for (const Param& param : model.params()) param.tensor.set_data(param.tensor.to(device));
  model.move_buffers_to(device);
}

/// Uses the rebuilt network. TorchScript is preferred, since engines can optimize it.
LoadedNetwork of_its_own_code(const SavedModel& saved, SavedNetwork network) {
  LoadedNetwork loaded{.source = saved.prefix, .step = saved.step};
  const std::optional<std::string> archive = torchscript_archive(saved, network);
  if (archive) {
    loaded.module = infer::load_torchscript(*archive, saved.prefix);
    loaded.nodes = nodes_of(network, infer::input_name(*loaded.module));
    return loaded;
  }
  loaded.nodes = nodes_of(network, "inputs");
  const std::shared_ptr<model::Model> model = std::move(network.model);
  // Moves the weights to the inputs' device once; params() refer to the same memory afterwards.
  loaded.forward = [model](const at::Tensor& inputs_BX) {
    const at::Device device = inputs_BX.device();
    if (model->params().at(0).tensor.device() != device) move_to(device, *model);
    return model->forward(inputs_BX);
  };
  return loaded;
}

[[noreturn]] void refuse_filling(const SavedModel& saved, const std::string& export_folder,
                                 const std::string& what) {
  throw Error(
      ExitCode::kBadData, "infer",
      fmt::format("{}: does not fit the network of {}, which stands in for its own code: {}",
                  saved.prefix, export_folder, what));
}

/// Copies the checkpoint's tensors over those of the export.
void fill(const SavedModel& saved, LoadedNetwork* loaded) {
  const at::NoGradGuard no_grad;
  size_t num_filled = 0;
  const auto put = [&](const std::string& name, const at::Tensor& live) {
    const auto found = saved.params.find(name);
    if (found == saved.params.end() || found->second.values.sizes() != live.sizes())
      refuse_filling(saved, loaded->source, "it holds no " + name + " of that shape");
    live.copy_(found->second.values);
    ++num_filled;
  };
  for (const auto& param : loaded->module->named_parameters()) put(param.name, param.value);
  for (const auto& buffer : loaded->module->named_buffers()) put(buffer.name, buffer.value);
  if (num_filled != saved.params.size())
    refuse_filling(
        saved, loaded->source,
        fmt::format("it holds {} tensors, the network {}", saved.params.size(), num_filled));
}

/// Opens the run's newest export; without one, the graph in its checkpoint folder.
LoadedNetwork open_published(const fs::path& checkpoints) {
  try {
    const fs::path models = checkpoints.parent_path() / "saved_models";
    return infer::open_saved_model(infer::newest_saved_model(models), version_facts().version);
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kInputMissing) throw;
    return infer::open_inference_graph(checkpoints);
  }
}

/// Uses a graph that the run published. `fault`: why the network's own code is not usable.
LoadedNetwork of_published_graph(const SavedModel& saved, const Error& fault) {
  std::optional<LoadedNetwork> loaded;
  try {
    loaded = open_published(fs::path(saved.prefix).parent_path());
  } catch (const Error& other) {
    if (other.code() != ExitCode::kInputMissing) throw;
    // Report the original fault; that no graph exists either is only added.
    Error told = fault;
    told.append(
        "; a run that exported once needs no code, but this one left neither saved_models "
        "nor checkpoints/inference_graph");
    throw told;
  }
  if (!saved.layers.empty())
    throw Error(
        ExitCode::kUsage, "infer",
        fmt::format("{}: is quantized, so that its network can be had of its own code alone, "
                    "which is not there ({}); use --saved_model",
                    saved.prefix, fault.what()));
  fill(saved, &*loaded);
  log::info("infer", fmt::format("{}: the network's code is not there; the graph of {} with the "
                                 "weights of the save",
                                 saved.prefix, loaded->source));
  loaded->source = saved.prefix;
  loaded->step = saved.step;
  return *std::move(loaded);
}

LoadedNetwork network_of(const SavedModel& saved, const std::string& run_file) {
  try {
    return of_its_own_code(saved, rebuild_network(saved, NetworkUse::kInference, run_file));
  } catch (const Error& fault) {
    // Only missing code leads to the published graph. Damage is always an error.
    const bool lacks_code =
        fault.code() == ExitCode::kInputMissing || fault.code() == ExitCode::kUsage;
    if (!lacks_code) throw;
    return of_published_graph(saved, fault);
  }
}

}  // namespace

LoadedNetwork open_checkpoint(const std::string& where, const std::string& run_file) {
  const SavedModel saved = as_evaluated(where);
  LoadedNetwork network = network_of(saved, run_file);
  network.class_names = classes_of_text(saved.class_names);
  return network;
}

}  // namespace lockstep::daemon
