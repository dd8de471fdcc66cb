// Rank and world size from the environment of mpirun, srun or torchrun, before MPI starts.
#include "dist/process_info.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"

namespace lockstep::dist {
namespace {

std::optional<int> parse_count(std::string_view text) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Returns the variable as a number, or `otherwise` if it is not set.
int number(const Environment& environment, const std::string& name, int otherwise) {
  const std::optional<std::string> text = environment(name);
  if (!text) return otherwise;
  const std::optional<int> value = parse_count(*text);
  if (!value)
    throw Error(ExitCode::kConfig, "dist",
                fmt::format("the launcher set {}='{}', which is not a whole number", name, *text));
  return *value;
}

/// Returns entry `index` of Slurm's list of counts, "2(x3),1" = 2 2 2 1. 0 if there is no such
/// entry or the format is unknown.
int entry_of_slurm_list(std::string_view list, int index) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const size_t open = item.find("(x");
    const int times = open == std::string_view::npos
                          ? 1
                          : parse_count(item.substr(open + 2, item.size() - open - 3)).value_or(0);
    if (index < times) return parse_count(item.substr(0, open)).value_or(0);
    index -= times;
  }
  return 0;
}

/// names: variables of the rank and the world size, then of both on this host.
ProcessInfo from_variables(const Environment& environment, const char* launcher,
                           const std::array<const char*, 4>& names) {
  ProcessInfo info;
  info.launcher = launcher;
  info.rank = number(environment, names[0], 0);
  info.world_size = number(environment, names[1], 1);
  info.local_rank = number(environment, names[2], 0);
  info.local_world_size = number(environment, names[3], 0);
  // The number of nodes is known only if all ranks are on this one.
  info.num_nodes = info.local_world_size == info.world_size ? 1 : 0;
  return info;
}

ProcessInfo from_srun(const Environment& environment) {
  ProcessInfo info;
  info.launcher = "srun";
  info.rank = number(environment, "PMIX_RANK", number(environment, "SLURM_PROCID", 0));
  info.world_size = number(environment, "SLURM_STEP_NUM_TASKS",
                           number(environment, "SLURM_NTASKS", info.rank + 1));
  info.local_rank = number(environment, "SLURM_LOCALID", 0);
  info.local_world_size = entry_of_slurm_list(environment("SLURM_STEP_TASKS_PER_NODE").value_or(""),
                                              number(environment, "SLURM_NODEID", 0));
  info.num_nodes =
      number(environment, "SLURM_STEP_NUM_NODES", number(environment, "SLURM_NNODES", 0));
  return info;
}

ProcessInfo from_launcher(const Environment& environment) {
  // mpirun first: inside a Slurm job, Slurm's variables describe mpirun's own step.
  if (environment("OMPI_COMM_WORLD_RANK"))
    return from_variables(environment, "mpirun",
                          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  // A batch script itself has SLURM_PROCID too; only a step's tasks have SLURM_STEP_NUM_TASKS.
  if (environment("PMIX_RANK") || environment("SLURM_STEP_NUM_TASKS"))
    return from_srun(environment);
  if (environment("RANK") && environment("WORLD_SIZE"))
    return from_variables(environment, "torchrun",
                          {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  ProcessInfo alone;
  alone.launcher = "none";
  return alone;
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

ProcessInfo read_process_info(const Environment& environment) {
  ProcessInfo info = from_launcher(environment);
  info.node = host_name();
  if (info.rank >= info.world_size)
    throw Error(
        ExitCode::kConfig, "dist",
        fmt::format("{} says rank {} of {} ranks", info.launcher, info.rank, info.world_size));
  return info;
}

void require_promised_ranks(const ProcessInfo& promised, int world_size) {
  if (promised.world_size <= world_size) return;
  throw Error(
      ExitCode::kConfig, "dist",
      fmt::format(
          "{}'s variables say {} ranks, MPI sees {}: start them with mpirun, or srun --mpi=pmix",
          promised.launcher, promised.world_size, world_size))
      .everywhere();
}

void warn_of_idle_tasks(const ProcessInfo& info, const Environment& environment) {
  const int num_tasks = number(environment, "SLURM_NTASKS", 1);
  if (info.launcher == "none" && num_tasks > 1)
    log::warning("dist", fmt::format("this rank trains alone, but Slurm allocated {} tasks: start "
                                     "them with srun --mpi=pmix, or mpirun",
                                     num_tasks));
}

}  // namespace lockstep::dist
