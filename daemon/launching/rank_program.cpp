#include "daemon/launching/rank_program.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace lockstep::daemon {
namespace {

/// Returns why a file cannot be executed; empty if it can.
std::string fault_of(const std::filesystem::path& program) {
  std::error_code ignored;
  if (!std::filesystem::exists(program, ignored)) return "there is no such file";
  if (!std::filesystem::is_regular_file(program, ignored)) return "it is no file";
  return ::access(program.c_str(), X_OK) == 0 ? "" : "this user may not execute it";
}

/// True if some folder of PATH contains the program.
bool is_command(const std::string& program) {
  const char* text = std::getenv("PATH");
  std::istringstream folders(text == nullptr ? "" : text);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fault_of(std::filesystem::path(folder) / program).empty()) return true;
  return false;
}

}  // namespace

std::string rank_program(const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  std::error_code ignored;
  // The installed programs are in one folder, whatever PATH says.
  auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.filename() == "lockstep")  // lockstep-tensors is in lib/lockstep
    folder = folder.parent_path().parent_path() / "bin";
  const auto beside = folder / "lockstepd";
  if (!std::filesystem::exists(beside, ignored))
    throw Error(ExitCode::kUnavailable, "launch",
                fmt::format("{} is not there: name the program that each rank runs with --program",
                            beside.string()));
  return beside.string();
}

std::string rank_program_here(const std::string& wanted) {
  const std::string program = rank_program(wanted);
  const std::string fault = program.find('/') != std::string::npos ? fault_of(program)
                            : is_command(program)                  ? ""
                                                  : "no folder of PATH has such a file";
  if (fault.empty()) return program;
  throw Error(ExitCode::kInputMissing, "launch",
              fmt::format("--program {}: {}; name what each rank runs, or leave it out: then it is "
                          "the lockstepd beside this program",
                          program, fault));
}

}  // namespace lockstep::daemon
