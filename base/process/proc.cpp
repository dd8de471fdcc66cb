#include "base/process/proc.h"

#include <unistd.h>
#include <fstream>
#include <sstream>

namespace lockstep {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double resident_bytes() {
  std::istringstream pages(first_line("/proc/self/statm"));
  double all = 0, resident = 0;
  if (!(pages >> all >> resident)) return 0;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace lockstep
