#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// First line of a file that the kernel makes up (/proc, /sys); empty where it cannot be read.
std::string first_line(const std::filesystem::path& path);

}  // namespace lockstep
