#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/config/overrides.h"
#include "daemon/exports/manifest.h"

namespace lockstep::daemon {

enum class ExportFormat { kSafetensors, kTorchScript, kOnnx, kTensorFlow };

/// Their names, as `--format` takes them.
std::vector<std::string> export_formats();
/// Throws Error(kUsage) for a name that is none.
ExportFormat export_format(const std::string& name);
const char* export_format_name(ExportFormat format);

struct ExportOptions {
  std::string where;      ///< folder of saves (its newest complete one), or the prefix of a save
  std::string out_file;   ///< replaced if it is there; tensorflow: a prefix, the step is added
  bool quantize = false;  ///< safetensors, onnx: int8 weights of quantized layers
  bool all = false;       ///< tensorflow: everything that the save holds, not only the model
  bool ema = false;       ///< the moving average of the weights in their place
  ExportFormat format = ExportFormat::kSafetensors;
  /// Stand above what the save says of its network, in sections model, estimator and plugins: where
  /// its files are now.
  std::vector<Override> overrides = {};
};

/// Writes the TorchScript archive of a save, whose network was rebuilt, into one file, and says
/// what is in it. Refuses as export_command() does.
Written write_torchscript(const SavedModel& saved, const SavedNetwork& network,
                          const std::string& out_file);
/// Its bytes, to compute with; nothing where the network has no form as TorchScript. Throws
/// Error(kBadData) where a pruned weight is not zero.
std::optional<std::string> torchscript_archive(const SavedModel& saved,
                                               const SavedNetwork& network);
/// What is known of such an archive.
ExportFacts torchscript_facts(const SavedModel& saved, const SavedNetwork& network);

/// Writes the model of a save in another format (docs/export.md), beside it OUT.json, which says
/// where it comes from and what is known of it, and tells what it wrote.
///
/// A weight that its mask prunes must be zero: otherwise the save is not trusted (kBadData) and
/// nothing is written. Throws Error(kUsage) for an option that the format does not have, and as
/// daemon/exports/ say; other errors as read_saved_model and base/files/files.h.
CommandResult export_command(const ExportOptions& options);

}  // namespace lockstep::daemon
