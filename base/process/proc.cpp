#include "base/process/proc.h"

#include <fstream>

namespace lockstep {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace lockstep
