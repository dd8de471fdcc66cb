#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "infer/exports/export.h"

namespace lockstep::daemon {
namespace {

/// Names of the formats on the command line and in manifests.
constexpr std::array<std::pair<const char*, ExportFormat>, 4> kFormats = {
    {{"safetensors", ExportFormat::kSafetensors},
     {"torchscript", ExportFormat::kTorchScript},
     {"onnx", ExportFormat::kOnnx},
     {"tensorflow", ExportFormat::kTensorFlow}}};

}  // namespace

std::vector<std::string> export_formats() {
  std::vector<std::string> names;
  for (const auto& [name, format] : kFormats) names.emplace_back(name);
  return names;
}

ExportFormat export_format(const std::string& name) {
  for (const auto& [known, format] : kFormats)
    if (name == known) return format;
  throw Error(ExitCode::kUsage, "export",
              fmt::format("unknown format '{}'{}", name, did_you_mean(name, export_formats())));
}

const char* export_format_name(ExportFormat format) {
  for (const auto& [name, value] : kFormats)
    if (value == format) return name;
  return "";
}

}  // namespace lockstep::daemon
