#include "base/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/process.h"

namespace lockstep {

const void* open_module(const std::filesystem::path& path, const char* symbol,
                        std::string_view build_id, const char* component, std::string_view kind,
                        std::string_view needs) {
  const auto refuse = [&](const std::string& message) {
    throw Error(ExitCode::kUnavailable, component, message);
  };
  // RTLD_LOCAL: symbols of its libraries must not replace those of the program.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    refuse(fmt::format("cannot open {}: {}{}", path.string(), dl_error(),
                       needs.empty() ? "" : fmt::format(" (it needs {})", needs)));
  const void* const table = dlsym(library, symbol);
  if (table == nullptr)
    refuse(fmt::format("{} is not {} of Lockstep: {}", path.string(), kind, dl_error()));
  const std::string_view found = *static_cast<const char* const*>(table);
  if (found != build_id)
    refuse(fmt::format("{} is of build '{}', this program of '{}': build both together",
                       path.string(), found, build_id));
  return table;
}

}  // namespace lockstep
