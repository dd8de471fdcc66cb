#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// First line of a file that the kernel makes up (/proc, /sys); empty where it cannot be read.
std::string first_line(const std::filesystem::path& path);

/// Resident memory of this process; 0 where the kernel does not tell.
double resident_bytes();

}  // namespace lockstep
