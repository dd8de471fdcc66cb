#include "infer/exports/export.h"

#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "base/yaml/yaml_document.h"
#include "infer/exports/checkpoint_model.h"
#include "infer/exports/formats.h"
#include "infer/exports/portable_network.h"

// Exports of checkpoints: chooses the format, checks that masked weights are zero, writes the file
// and its manifest. Each format's own function does the writing.
namespace lockstep::exports {
namespace {

/// Throws Error if the option is given to a format that does not have it.
void require_fit(bool is_given, const char* option, bool ExportFormat::*has_it,
                 const ExportFormat& format) {
  if (!is_given || format.*has_it) return;
  std::vector<std::string> others = export_formats();
  std::erase_if(others, [&](const std::string& name) { return !(export_format(name).*has_it); });
  throw Error(ExitCode::kUsage, "export",
              fmt::format("{} belongs to --format {}; --format {} does not support it", option,
                          fmt::join(others, " and --format "), format.name));
}

void require_options_fit(const ExportOptions& options, const ExportFormat& format) {
  require_fit(options.quantize, "--quantize", &ExportFormat::quantizes, format);
  require_fit(options.sparse, "--sparse", &ExportFormat::packs_zeros, format);
  if (options.all && options.ema)
    throw Error(ExitCode::kUsage, "export",
                "--ema replaces the weights by the averages, --all writes both, the averages under "
                "ema/: give one of them");
  require_fit(options.all, "--all", &ExportFormat::takes_all, format);
  require_fit(options.max_shard_bytes.has_value(), "--max-shard-size", &ExportFormat::has_shards,
              format);
}

/// Throws Error if a pruned weight is not zero: masks and weights then come from different states.
void require_zeros(const CheckpointModel& model) {
  for (const auto& [name, param] : model.params) {
    const int64_t num_bad = param.pruned.logical_and(param.values.ne(0)).sum().item<int64_t>();
    if (num_bad > 0)
      throw Error(ExitCode::kBadData, "export",
                  fmt::format("{}: {} of the {} pruned weights of {} are not zero: masks and "
                              "weights of this checkpoint do not match; nothing was written",
                              model.prefix, num_bad, param.pruned.sum().item<int64_t>(),
                              name.substr(0, name.rfind('.'))));
  }
}

std::string note_on_quantization(const CheckpointModel& model, bool quantize) {
  if (model.layers.empty()) return "";
  return fmt::format("  {} quantized layers round their inputs and weights as in training{}\n",
                     model.layers.size(), quantize ? "; their weights are stored as int8" : "");
}

/// Returns the tensors of the file, by the names that they have in it.
std::vector<TensorForm> forms_of(const PortableNetwork& network, const ExportOptions& options) {
  const bool is_onnx = options.format == OnnxExport::kFormat.name;
  std::map<std::string, at::Tensor> all = network.tensors;
  for (const auto& [layer, by] : network.quantized) {
    all[layer + ".weight_scale"] = by.weight_scale;
    all[layer + ".weight_zero_point"] = by.weight_zero_point;
    if (is_onnx && by.rounds_inputs()) {
      all[layer + ".input_scale"] = by.input_scale;
      all[layer + ".input_zero_point"] = by.input_zero_point;
    }
    if (options.quantize) all[layer + ".weight"] = by.int8_weight;
  }
  std::vector<TensorForm> forms;
  for (const auto& [name, tensor] : all) forms.push_back(form_of(name, tensor));
  return forms;
}

Written write_bytes(const std::string& bytes, const ExportOptions& options) {
  files::write_atomically(options.out_file, bytes);
  return {.file = options.out_file, .num_bytes = static_cast<int64_t>(bytes.size())};
}

/// Writes a network that was given as TorchScript, with its new weights.
Written write_archive(const CheckpointModel& saved, const std::string& bytes,
                      const ExportOptions& options) {
  if (!saved.layers.empty())
    throw Error(ExitCode::kUsage, "export",
                fmt::format("{}: a quantized network of type torchscript cannot be exported as "
                            "TorchScript; use --format safetensors",
                            saved.prefix));
  Written written = write_bytes(bytes, options);
  for (const auto& [name, param] : saved.params)
    written.tensors.push_back(form_of(name, param.values));
  written.text =
      fmt::format("{}: {} bytes, TorchScript, in evaluation\n", options.out_file, bytes.size());
  return written;
}

/// Returns the network's description, with the quantization of the checkpoint.
PortableNetwork described(const CheckpointModel& saved, const CheckpointNetwork& network,
                          bool traces = false) {
  PortableNetwork forward =
      portable(*network.model, network.input_shape, network.num_classes, traces);
  forward.quantized = quantized_layers(saved);
  return forward;
}

template <typename... Format>
struct Writers {
  static WriteExport* of(const std::string& name) {
    const std::map<std::string_view, WriteExport*> writers{
        {Format::kFormat.name, &Format::write}...};
    return writers.at(name);
  }
};

Quantization quantization_in(const CheckpointModel& saved, const ExportOptions& options) {
  if (saved.layers.empty()) return Quantization::kNone;
  if (!export_format(options.format).has_rounding) return Quantization::kLeftOut;
  return options.quantize ? Quantization::kInt8 : Quantization::kFake;
}

/// Returns the network of a checkpoint. A format without need for it continues if the network
/// cannot be rebuilt: returns nullopt with a warning, and the manifest has fewer facts.
std::optional<CheckpointNetwork> network_of(const CheckpointModel& saved,
                                            const ExportFormat& format,
                                            const std::string& run_file) {
  const NetworkUse use = !format.calls_python ? NetworkUse::kExport
                         : format.has_forward ? NetworkUse::kInference
                                              : NetworkUse::kModule;
  if (format.has_forward) return rebuild_network(saved, use, run_file);
  if (!names_its_network(saved, use)) return std::nullopt;
  try {
    return rebuild_network(saved, use, run_file);
  } catch (const Error& fault) {
    log::warning("export", fault.what());
    return std::nullopt;
  }
}

/// Returns the checkpoint's settings with other values for some keys of its network.
std::string settings_with(const std::vector<daemon::Override>& overrides, std::string settings) {
  for (const daemon::Override& one : overrides) {
    const std::string section = one.path.substr(0, one.path.find_first_of(".["));
    if (section != "model" && section != "estimator" && section != "plugins")
      throw Error(
          ExitCode::kUsage, "export",
          fmt::format("--set {}: only keys of model, estimator and plugins can be set", one.path));
    std::string kept;
    for (const std::string& line : split(settings))
      if (!line.starts_with(one.path + "=")) kept += line + "\n";
    settings = kept + one.path + "=" + one.value;
  }
  return settings;
}

}  // namespace

Written NetworkExport::write(const CheckpointModel& saved, const CheckpointNetwork* network,
                             const ExportOptions& options) {
  if (options.quantize) require_quantized(saved);
  // A network of type torchscript keeps its own archive; it has no layers to translate.
  if (options.format == TorchScriptExport::kFormat.name)
    if (const std::string bytes = network->model->torchscript_archive(); !bytes.empty())
      return write_archive(saved, bytes, options);
  const bool is_onnx = options.format == OnnxExport::kFormat.name;
  PortableNetwork forward;
  try {
    forward = described(saved, *network, /*traces=*/is_onnx);
  } catch (const Error& fault) {
    // Not a chain of layers: torch.export can trace it, without the rounding of quantized layers.
    if (fault.code() != ExitCode::kUsage || !is_in_python(*network->model) || !saved.layers.empty())
      throw;
    return ExportedProgram::write(saved, network, options);
  }
  forward.facts = {{"producer", "lockstep " + daemon::version_facts().version},
                   {"source", std::filesystem::path(saved.prefix).filename().string()},
                   {"step", std::to_string(saved.step)}};
  const std::string bytes =
      is_onnx ? onnx_bytes(forward, options.quantize) : torchscript_bytes(forward);
  Written written = write_bytes(bytes, options);
  written.tensors = forms_of(forward, options);
  const bool takes_tokens = network->input_dtype == at::kLong;
  written.text = fmt::format(
      "{}: {} bytes, {}; {} inputs [batch, {}] -> logits [batch, {}{}], of evaluation\n{}",
      options.out_file, bytes.size(),
      is_onnx ? fmt::format("ONNX, operator set {}", kOnnxOperatorSet) : "TorchScript",
      takes_tokens ? "int64" : "float32",
      takes_tokens ? "tokens" : fmt::format("{}", fmt::join(network->input_shape, ", ")),
      takes_tokens ? "tokens, " : "", network->num_classes,
      note_on_quantization(saved, options.quantize));
  return written;
}

Written write_network(const CheckpointModel& saved, const CheckpointNetwork& network,
                      const ExportOptions& options) {
  require_zeros(saved);
  return NetworkExport::write(saved, &network, options);
}

std::optional<std::string> torchscript_archive(const CheckpointModel& saved,
                                               const CheckpointNetwork& network) {
  require_zeros(saved);
  if (const std::string bytes = network.model->torchscript_archive(); !bytes.empty()) return bytes;
  try {
    return torchscript_bytes(described(saved, network));
  } catch (const Error& fault) {
    // kUsage: the network has no TorchScript form. That is not an error here.
    if (fault.code() != ExitCode::kUsage) throw;
    return std::nullopt;
  }
}

namespace {

/// True if the network has a form in a format that is written layer by layer.
bool has_form(const model::Model& model, const std::vector<int64_t>& input_shape, bool is_onnx) {
  try {
    const PortableNetwork network = portable(model, input_shape, 0, /*traces=*/is_onnx);
    (void)torchscript_source(network);  // both formats express the same kinds of layers
    if (is_onnx) require_onnx_room(network);
    return true;
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kUsage) throw;
    return false;
  }
}

}  // namespace

bool can_export(const model::Model& model, const std::vector<int64_t>& input_shape,
                const std::string& format) {
  if (!export_format(format).has_forward) return true;
  const bool is_onnx = format == OnnxExport::kFormat.name;
  const bool is_quantized = model.has_layer_hook();
  if (is_in_python(model) && !is_quantized) return format != TorchScriptExport::kFormat.name;
  if (format == ExportedProgram::kFormat.name) return false;
  if (!is_onnx && !model.torchscript_archive().empty()) return !is_quantized;
  return has_form(model, input_shape, is_onnx);
}

std::string possible_exports(const model::Model& model, const std::vector<int64_t>& input_shape) {
  std::vector<std::string> formats = export_formats();
  std::erase_if(formats,
                [&](const std::string& name) { return !can_export(model, input_shape, name); });
  std::string text = fmt::format("{}", fmt::join(formats, ", "));
  if (is_in_python(model) && !model.has_layer_hook())
    text += " (onnx and pt2 if torch.export can trace forward)";
  return text;
}

ExportFacts torchscript_facts(const CheckpointModel& saved, const CheckpointNetwork& network) {
  ExportFacts facts = facts_of(saved, &network);
  facts.quantization = saved.layers.empty() ? Quantization::kNone : Quantization::kFake;
  return facts;
}

daemon::CommandResult export_command(const ExportOptions& options) {
  const ExportFormat& format = export_format(options.format);
  require_options_fit(options, format);
  CheckpointModel saved = read_checkpoint_model(options.where, options.ema);
  // Before rebuild_network(), which reads these settings.
  saved.settings = settings_with(options.overrides, std::move(saved.settings));
  require_zeros(saved);
  const std::optional<CheckpointNetwork> network = network_of(saved, format, options.run_file);
  const CheckpointNetwork* const rebuilt = network ? &*network : nullptr;
  const Written written = OfAllFormats<Writers>::of(options.format)(saved, rebuilt, options);
  ExportFacts facts = facts_of(saved, rebuilt);
  facts.quantization = quantization_in(saved, options);
  facts.is_ema = options.ema;
  const std::string manifest = write_manifest(facts, options.format, written);
  return {fmt::format("{}, step {}\n{}{}: origin of the export\n", saved.prefix, saved.step,
                      written.text, manifest),
          0};
}

}  // namespace lockstep::exports
