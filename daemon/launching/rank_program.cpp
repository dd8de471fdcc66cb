#include "daemon/launching/rank_program.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::daemon {

std::string rank_program(const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  std::error_code ignored;
  auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.filename() == "lockstep")  // of lib/lockstep, where lockstep-tensors is
    folder = folder.parent_path().parent_path() / "bin";
  const auto beside = folder / "lockstepd";
  if (!std::filesystem::exists(beside, ignored))
    throw Error(ExitCode::kUnavailable, "launch",
                fmt::format("{} is not there: name the program that each rank runs with --program",
                            beside.string()));
  return beside.string();
}

}  // namespace lockstep::daemon
