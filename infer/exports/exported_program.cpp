#include <filesystem>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/files.h"
#include "daemon/config/program.h"
#include "infer/exports/formats.h"
#include "python/python_types.h"

// Networks in Python: torch.export traces the module in the interpreter of this process. The module
// is written as .pt2, or as ONNX by the exporter that is built on torch.export.
namespace lockstep::exports {
namespace {

/// Samples of the example that is traced. A number of 1 would be taken for a constant.
constexpr int64_t kNumExamples = 2;

const python::PythonModel& module_of(const CheckpointModel& saved, const CheckpointNetwork& network,
                                     const std::string& format) {
  const auto* module = dynamic_cast<const python::PythonModel*>(network.model.get());
  if (module == nullptr)
    throw Error(
        ExitCode::kUsage, "export",
        fmt::format("{}: --format {} is for networks in Python; use --format torchscript or "
                    "onnx",
                    saved.prefix, format));
  if (!saved.layers.empty())
    throw Error(ExitCode::kUsage, "export",
                fmt::format("{}: a quantized network in Python cannot be exported as {}; use "
                            "--format safetensors",
                            saved.prefix, format));
  return *module;
}

python::Map facts_of_origin(const CheckpointModel& saved) {
  return {{"producer", "lockstep " + daemon::version_facts().version},
          {"source", std::filesystem::path(saved.prefix).filename().string()},
          {"step", std::to_string(saved.step)}};
}

}  // namespace

bool is_in_python(const model::Model& model) {
  return dynamic_cast<const python::PythonModel*>(&model) != nullptr;
}

Written ExportedProgram::write(const CheckpointModel& saved, const CheckpointNetwork* network,
                               const ExportOptions& options) {
  const python::PythonModel& module = module_of(saved, *network, options.format);
  std::vector<int64_t> shape{kNumExamples};
  shape.insert(shape.end(), network->input_shape.begin(), network->input_shape.end());
  const bool is_tokens = network->input_dtype == at::kLong;  // else numbers, perhaps both
  const at::Tensor inputs = at::zeros(shape, is_tokens ? at::kLong : at::kFloat);
  constexpr std::string_view kSuffix = ".tmp";
  files::WholeFile file(options.out_file, kSuffix);
  // Python writes into the same file, so publish() syncs its bytes.
  (void)module.call_glue("export_program", {options.out_file + std::string(kSuffix), options.format,
                                            inputs, facts_of_origin(saved)});
  file.publish(/*durably=*/true);
  Written written{.file = options.out_file,
                  .num_bytes = static_cast<int64_t>(std::filesystem::file_size(options.out_file))};
  for (const auto& [name, param] : saved.params)
    written.tensors.push_back(form_of(name, param.values));
  written.text = fmt::format(
      "{}: {} bytes, {} of torch.export; {} inputs [batch, {}], in evaluation\n", options.out_file,
      written.num_bytes, options.format == OnnxExport::kFormat.name ? "ONNX" : "program",
      is_tokens ? "int64" : "float32", fmt::join(network->input_shape, ", "));
  return written;
}

}  // namespace lockstep::exports
