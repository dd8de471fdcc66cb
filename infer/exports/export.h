#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/overrides.h"
#include "daemon/config/program.h"
#include "infer/exports/manifest.h"

namespace lockstep::exports {

/// Properties of a format.
struct ExportFormat {
  std::string_view name;      ///< on the command line and in manifests
  bool has_forward = false;   ///< contains the forward pass, so it needs the network
  bool quantizes = false;     ///< has option --quantize
  bool packs_zeros = false;   ///< has option --sparse
  bool has_rounding = true;   ///< contains the quantization of the checkpoint
  bool takes_all = false;     ///< has option --all
  bool has_shards = false;    ///< has option --max-shard-size
  bool calls_python = false;  ///< uses the code of a network in Python, if it is found
};

/// Returns the names of all formats, as `--format` takes them.
std::vector<std::string> export_formats();
/// Returns the format of a name. Throws Error(kUsage) for an unknown name.
const ExportFormat& export_format(const std::string& name);

/// Default of ExportOptions::max_shard_bytes.
inline constexpr int64_t kShardBytes = 5'000'000'000;

struct ExportOptions {
  std::string where;  ///< folder of checkpoints (its newest complete one), or the prefix of one
  /// Replaced if it exists. tensorflow: a prefix, the step is appended. pretrained: a new folder.
  std::string out_file;
  bool quantize = false;  ///< safetensors, onnx: int8 weights of quantized layers
  bool sparse = false;    ///< safetensors: kept weights and bit masks
  bool all = false;       ///< tensorflow: all tensors of the checkpoint, not only the model
  bool ema = false;       ///< moving averages instead of the weights
  std::optional<int64_t> max_shard_bytes = {};  ///< pretrained: of tensors in a file; kShardBytes
  std::string format = "safetensors";           ///< one of export_formats()
  /// Overrides of the checkpoint's settings in sections model, estimator and plugins: where its
  /// files are now.
  std::vector<daemon::Override> overrides = {};
  std::string run_file = {};  ///< another place to search for Python code: next to it
};

/// Returns the formats in which this network can be exported, for people: "safetensors, onnx". A
/// network with a layer hook counts as quantized. Networks in Python may be traced.
std::string possible_exports(const model::Model& model, const std::vector<int64_t>& input_shape);

/// True if this network can be exported in this format.
bool can_export(const model::Model& model, const std::vector<int64_t>& input_shape,
                const std::string& format);

/// Writes a checkpoint with a rebuilt network to options.out_file, without a manifest. The format
/// is torchscript or onnx. Returns a description of its content. Refuses the same checkpoints as
/// export_command().
Written write_network(const CheckpointModel& saved, const CheckpointNetwork& network,
                      const ExportOptions& options);
/// Returns the bytes of that archive for immediate use. nullopt if the network has no TorchScript
/// form. Throws Error(kBadData) if a pruned weight is not zero.
std::optional<std::string> torchscript_archive(const CheckpointModel& saved,
                                               const CheckpointNetwork& network);
/// Returns the manifest's facts of such an archive.
ExportFacts torchscript_facts(const CheckpointModel& saved, const CheckpointNetwork& network);

/// Writes the model of a checkpoint in another format (docs/export.md). Also writes OUT.json next
/// to it, with its origin and other facts. Returns a description of both.
///
/// A pruned weight must be zero. Otherwise the checkpoint is not trusted (kBadData) and nothing is
/// written. Throws Error(kUsage) for an option that the format does not have, and as
/// infer/exports/formats.h says. Other errors: see read_checkpoint_model and base/files/files.h.
daemon::CommandResult export_command(const ExportOptions& options);

}  // namespace lockstep::exports
