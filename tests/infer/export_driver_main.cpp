// Exports every type of network in every format, for other programs to judge:
//   export_driver DIR
// leaves DIR/plain/<title>/model.<format> (tensorflow: model.tensorflow-30.*) and, in
// answers.safetensors, `inputs` and the `logits` that the network itself computes for them, and all
// its tensors under `tensor.<name>`. `model.onnx` and `int8.onnx` are what engine sparse computes
// of these files. In DIR/quantized/<title> the same of networks that round, with the `plain_logits`
// of the same weights, and int8.onnx and int8.safetensors where inputs were observed.

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/import/safetensors.h"
#include "infer/exports/export.h"
#include "infer/sparse/sparse_network.h"
#include "tests/infer/saved_networks.h"

namespace lockstep::tests {
namespace {

void write_answers(TrainedNetwork* trained, const std::filesystem::path& folder) {
  const at::Tensor inputs = trained->inputs(7);
  std::vector<checkpoint::SafetensorsItem> items = {
      {"inputs", inputs},
      {"logits", trained->logits(inputs)},
      {"plain_logits", trained->plain_logits(inputs)}};
  for (const char* name : {"model.onnx", "int8.onnx"})
    if (const auto file = folder / name; std::filesystem::exists(file)) {
      infer::SparseNetwork network(infer::read_onnx(files::read(file), file, folder));
      items.push_back({name, network.run({inputs}).at(0)});
    }
  for (const Param& param : trained->net->params())
    items.push_back({"tensor." + param.name, param.tensor.detach()});
  for (const model::Buffer& buffer : trained->net->buffers())
    items.push_back({"tensor." + buffer.name, buffer.tensor});
  checkpoint::write_safetensors(folder / "answers.safetensors", items, {});
}

void export_all(TrainedNetwork* trained, bool has_int8, const std::filesystem::path& folder) {
  const std::string prefix = trained->save(folder / "run" / "checkpoints" / "m");
  for (const std::string& format : exports::export_formats()) {
    if (format == "pt2") continue;  // of networks in Python alone
    if (trained->quantizer && !exports::export_format(format).has_rounding) continue;
    exports::export_command(
        {.where = prefix, .out_file = folder / ("model." + format), .format = format});
    if (has_int8 && exports::export_format(format).quantizes)
      exports::export_command({.where = prefix,
                               .out_file = folder / ("int8." + format),
                               .quantize = true,
                               .format = format});
  }
  write_answers(trained, folder);
  std::filesystem::remove_all(folder / "run");
}

void export_networks(const std::filesystem::path& folder) {
  const std::vector<NetworkCase> networks = network_cases();
  for (const NetworkCase& c : networks) {
    TrainedNetwork trained(c);
    export_all(&trained, false, folder / "plain" / c.title);
  }
  for (const QuantizedCase& c : quantized_cases()) {
    TrainedNetwork trained(networks[c.network]);
    trained.quantize(c);
    export_all(&trained, c.observes_inputs, folder / "quantized" / c.title);
  }
}

}  // namespace
}  // namespace lockstep::tests

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  try {
    lockstep::tests::export_networks(argv[1]);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
  return 0;
}
