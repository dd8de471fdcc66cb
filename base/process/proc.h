#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// Returns the first line of a virtual file of the kernel (/proc, /sys); empty if it cannot be
/// read.
std::string first_line(const std::filesystem::path& path);

/// Returns the resident memory of this process in bytes; 0 if the kernel does not report it.
double resident_bytes();

}  // namespace lockstep
