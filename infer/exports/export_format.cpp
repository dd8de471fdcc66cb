#include <array>

#include <fmt/format.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "infer/exports/export.h"
#include "infer/exports/formats.h"

namespace lockstep::exports {
namespace {

template <typename... Format>
struct Rows {
  static constexpr std::array kAll{Format::kFormat...};
};

}  // namespace

std::vector<std::string> export_formats() {
  std::vector<std::string> names;
  for (const ExportFormat& format : OfAllFormats<Rows>::kAll) names.emplace_back(format.name);
  return names;
}

const ExportFormat& export_format(const std::string& name) {
  for (const ExportFormat& format : OfAllFormats<Rows>::kAll)
    if (name == format.name) return format;
  throw Error(ExitCode::kUsage, "export",
              fmt::format("unknown format '{}'{}", name, did_you_mean(name, export_formats())));
}

}  // namespace lockstep::exports
