#include "launch/ranks.h"

#include <cstdlib>
#include <iterator>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/text.h"
#include "launch/mpirun.h"

namespace lockstep::launch {
namespace {

/// Returns why a file cannot be executed; empty if it can.
std::string fault_of(const std::filesystem::path& program) {
  if (!files::exists(program)) return "no such file";
  if (!files::is_file(program)) return "it is not a file";
  return ::access(program.c_str(), X_OK) == 0 ? "" : "this user may not execute it";
}

}  // namespace

bool is_command(const std::string& program) {
  const char* text = std::getenv("PATH");
  for (const std::string& folder : split(text == nullptr ? "" : text, ':'))
    if (fault_of(std::filesystem::path(folder) / program).empty()) return true;
  return false;
}

std::string rank_program(const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  std::error_code ignored;
  // The installed programs are in one folder, whatever PATH says.
  auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  if (folder.filename() == "lockstep")  // lockstep-tensors is in lib/lockstep
    folder = folder.parent_path().parent_path() / "bin";
  const auto beside = folder / "lockstepd";
  if (!files::exists(beside))
    throw Error(ExitCode::kUnavailable, "launch",
                fmt::format("{} does not exist: name the program of the ranks with --program",
                            beside.string()));
  return beside.string();
}

// Options that `lockstep run`, `serve` and `doctor` share.

std::vector<std::string> mpirun_arguments() {
  const char* text = std::getenv("LOCKSTEP_MPIRUN_ARGS");
  std::istringstream words(text != nullptr ? text : "");
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<Host> hosts_of(const std::string& text) {
  if (text.empty()) return {};
  std::vector<Host> hosts = parse_hosts(text);
  require_different_hosts(hosts);
  return hosts;
}

bool runs_here(const RanksOptions& options) {
  // Further arguments of mpirun may name hosts too.
  return options.hosts.empty() && mpirun_arguments().empty();
}

std::string rank_program(const RanksOptions& options) {
  const std::string program = rank_program(options.program);
  if (!runs_here(options)) return program;
  const std::string fault = program.find('/') != std::string::npos ? fault_of(program)
                            : is_command(program)                  ? ""
                                                  : "no folder of PATH contains this file";
  if (fault.empty()) return program;
  throw Error(ExitCode::kInputMissing, "launch",
              fmt::format("--program {}: {}; name the program of the ranks, or remove the option "
                          "to use the lockstepd next to this program",
                          program, fault));
}

int supervise_ranks(const RanksOptions& options, const std::filesystem::path& folder,
                    std::function<std::vector<std::string>(bool is_restart)> program,
                    std::function<SaveFound()> newest_save,
                    std::function<bool(int exit_code)> settle) {
  SupervisorOptions supervisor{.num_ranks = options.num_ranks,
                               .max_restarts = options.max_restarts,
                               .num_spares = options.num_spares,
                               .grace_s = options.grace_s,
                               .mpirun_arguments = mpirun_arguments(),
                               .folder = folder,
                               .program = std::move(program),
                               .newest_save = std::move(newest_save),
                               .settle = std::move(settle)};
  supervisor.hosts = hosts_of(options.hosts);
  if (options.num_ranks == 0)
    supervisor.num_ranks = supervisor.hosts.empty() ? 1 : num_slots(supervisor.hosts);
  // By default a run does not continue with fewer ranks.
  supervisor.min_ranks = options.min_ranks == 0 ? supervisor.num_ranks : options.min_ranks;
  return supervise(supervisor);
}

}  // namespace lockstep::launch
