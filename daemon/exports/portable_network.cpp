#include "daemon/exports/portable_network.h"

#include <fmt/format.h>

#include "base/error.h"

// A network that describes its layers can be written in any format. One that runs its own code has
// no layers here.
namespace lockstep::daemon {

PortableNetwork portable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         int64_t num_classes) {
  PortableNetwork network{
      .layers = model.network(), .input_shape = input_shape, .num_classes = num_classes};
  if (network.layers.empty())
    throw Error(
        ExitCode::kUsage, "export",
        "this network has no form as TorchScript or ONNX (docs/models.md names those that "
        "have one), so only its tensors can be written: --format safetensors or tensorflow");
  std::map<std::string, at::Tensor> all;
  for (const Param& param : model.params()) all[param.name] = param.tensor;
  for (const model::Buffer& buffer : model.buffers()) all[buffer.name] = buffer.tensor;
  for (const model::NetworkLayer& layer : network.layers)
    for (const std::string& name : model::tensor_names(layer)) {
      check(all.contains(name), "the network has no tensor '" + name + "' that a layer names");
      // On the CPU and contiguous, because writers read the memory directly.
      network.tensors[name] = all[name].detach().cpu().contiguous();
    }
  return network;
}

void refuse_layer(const model::Network& layers, size_t layer, const char* format) {
  const model::NetworkLayer& bad = layers[layer];
  throw Error(ExitCode::kUsage, "export",
              fmt::format("layer {} of {} ({}{}) has no form in {}, which is written for "
                          "Lockstep's own layers: write this network's tensors alone (--format "
                          "safetensors or tensorflow)",
                          layer + 1, layers.size(), model::kind_name(bad.kind),
                          bad.name.empty() ? "" : " '" + bad.name + "'", format));
}

}  // namespace lockstep::daemon
