#include "base/process/proc.h"

#include <unistd.h>
#include <fstream>
#include <sstream>

namespace lockstep {

// A file of the kernel has no size, so it is read as a stream.
std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double resident_bytes() {
  // statm counts in pages: total, resident, ...
  std::istringstream pages(first_line("/proc/self/statm"));
  double all = 0, resident = 0;
  if (!(pages >> all >> resident)) return 0;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace lockstep
