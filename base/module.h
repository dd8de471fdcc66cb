#pragma once

#include <filesystem>
#include <string_view>

/// Modules: shared libraries of this program's build that it opens on demand.
namespace lockstep {

/// Opens a module for the rest of the process, since objects of its classes may live that long.
/// Returns its table: an extern "C" constant of this name, whose first field is the build's name
/// (const char*). `kind`: "a Python module", for messages. `needs`: what it needs from the host, as
/// a part of a sentence; may be empty.
///
/// Throws Error(kUnavailable, component) if it cannot be opened, has no such table, or comes from
/// another build. Classes pass between both sides, so their layouts must be equal.
const void* open_module(const std::filesystem::path& path, const char* symbol,
                        std::string_view build_id, const char* component, std::string_view kind,
                        std::string_view needs = {});

}  // namespace lockstep
