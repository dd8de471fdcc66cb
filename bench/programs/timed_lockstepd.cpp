// lockstepd that also notes when each step begins. Rank 0 writes the seconds from one step's begin
// to the next one's, a line each, into the file that LOCKSTEP_BENCH_TIMES names. So a time is that
// of the loop's whole turn, records and all; the last step has none.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "daemon/lockstepd.h"
#include "dist/process_info.h"

namespace {

using Clock = std::chrono::steady_clock;

void write(const char* path, const std::vector<Clock::time_point>& begins) {
  std::ofstream out(path);
  for (size_t i = 1; i < begins.size(); ++i)
    out << std::chrono::duration<double>(begins[i] - begins[i - 1]).count() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Clock::time_point> begins;
  begins.reserve(1 << 16);
  const int code = lockstep::daemon::lockstepd_main(
      argc, argv, [&](int64_t, lockstep::model::Model&) { begins.push_back(Clock::now()); });
  const char* path = std::getenv("LOCKSTEP_BENCH_TIMES");
  if (path != nullptr && lockstep::dist::read_process_info().rank == 0) write(path, begins);
  return code;
}
