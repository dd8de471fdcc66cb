// Exports every type of network in every format, for other programs to judge:
//   export_driver DIR
// leaves DIR/<title>/{model.pt, model.onnx, model.safetensors, tf/m-30.*} and, in
// answers.safetensors, `inputs` and the `logits` that the network itself computes for them, and all
// its tensors under `tensor.<name>`.

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "daemon/export.h"
#include "tests/daemon/saved_networks.h"

namespace lockstep::tests {
namespace {

using daemon::ExportFormat;

void write_answers(TrainedNetwork* trained, const std::filesystem::path& folder) {
  const at::Tensor inputs = trained->inputs(7);
  std::vector<checkpoint::SafetensorsItem> items = {{"inputs", inputs},
                                                    {"logits", trained->logits(inputs)}};
  for (const Param& param : trained->net->params())
    items.push_back({"tensor." + param.name, param.tensor.detach()});
  for (const model::Buffer& buffer : trained->net->buffers())
    items.push_back({"tensor." + buffer.name, buffer.tensor});
  checkpoint::write_safetensors(folder / "answers.safetensors", items, {});
}

void export_all(const NetworkCase& c, const std::filesystem::path& folder) {
  TrainedNetwork trained(c);
  const std::string prefix = trained.save(folder / "run" / "checkpoints" / "m");
  const std::vector<std::pair<const char*, ExportFormat>> files = {
      {"model.pt", ExportFormat::kTorchScript},
      {"model.onnx", ExportFormat::kOnnx},
      {"model.safetensors", ExportFormat::kSafetensors},
      {"tf/m", ExportFormat::kTensorFlow}};
  for (const auto& [name, format] : files)
    daemon::export_command({.where = prefix, .out_file = folder / name, .format = format});
  write_answers(&trained, folder);
}

}  // namespace
}  // namespace lockstep::tests

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  try {
    for (const lockstep::tests::NetworkCase& c : lockstep::tests::network_cases())
      lockstep::tests::export_all(c, std::filesystem::path(argv[1]) / c.title);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
  return 0;
}
