#include "daemon/launching/slurm_command.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process/shell.h"
#include "daemon/config/run_config.h"
#include "daemon/launching/rank_program.h"

namespace lockstep::daemon {

CommandResult slurm_command(const SlurmCommandOptions& options) {
  std::vector<Override> overrides;
  for (const std::string& set : options.sets) overrides.push_back(parse_set(set));
  Diagnostics faults;
  const RunConfig config = load_run_config(options.config_file, overrides, &faults);
  faults.throw_if_any("config");

  launch::SlurmJob job = options.job;
  job.name = config.run.name;
  if (options.cpus_per_rank > 0) job.cpus_per_rank = options.cpus_per_rank;
  job.program = {rank_program(options.program), "--config", options.config_file};
  for (const std::string& set : options.sets) job.program.insert(job.program.end(), {"--set", set});
  const std::string script = launch::sbatch_script(job);
  if (options.out_file.empty()) return {script, 0};
  files::write_atomically(options.out_file, script);
  return {fmt::format("{} written; start it with: sbatch {}\n", options.out_file,
                      shell_quoted(options.out_file)),
          0};
}

}  // namespace lockstep::daemon
