#include "daemon/launching/supervised_ranks.h"

#include <cstdlib>
#include <iterator>
#include <sstream>
#include <utility>

#include "daemon/launching/rank_program.h"
#include "launch/mpirun/hosts.h"
#include "launch/mpirun/same_host.h"

// Options that `lockstep run`, `serve` and `doctor` share.
namespace lockstep::daemon {

std::vector<std::string> mpirun_arguments() {
  const char* text = std::getenv("LOCKSTEP_MPIRUN_ARGS");
  std::istringstream words(text != nullptr ? text : "");
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<launch::Host> hosts_of(const std::string& text) {
  if (text.empty()) return {};
  std::vector<launch::Host> hosts = launch::parse_hosts(text);
  launch::require_different_hosts(hosts);
  return hosts;
}

bool runs_here(const RanksOptions& options) {
  // Further arguments of mpirun may name hosts too.
  return options.hosts.empty() && mpirun_arguments().empty();
}

std::string rank_program(const RanksOptions& options) {
  return runs_here(options) ? rank_program_here(options.program) : rank_program(options.program);
}

int supervise_ranks(const RanksOptions& options, const std::filesystem::path& folder,
                    std::function<std::vector<std::string>(bool is_restart)> program,
                    std::function<launch::SaveFound()> newest_save,
                    std::function<bool(int exit_code)> settle) {
  launch::SupervisorOptions supervisor{.num_ranks = options.num_ranks,
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
    supervisor.num_ranks = supervisor.hosts.empty() ? 1 : launch::num_slots(supervisor.hosts);
  // By default a run does not continue with fewer ranks.
  supervisor.min_ranks = options.min_ranks == 0 ? supervisor.num_ranks : options.min_ranks;
  return launch::supervise(supervisor);
}

}  // namespace lockstep::daemon
