#include "daemon/launching/slurm_command.h"

#include <fmt/format.h>

#include "base/files/files.h"
#include "base/process/shell.h"
#include "daemon/launching/rank_program.h"

namespace lockstep::daemon {

CommandResult slurm_command(const SlurmCommandOptions& options) {
  const RunConfig config = load_run_config(options.config_file, options.above);

  launch::SlurmJob job = options.job;
  job.name = config.run.name;
  if (options.cpus_per_rank > 0) job.cpus_per_rank = options.cpus_per_rank;
  job.program = {rank_program(options.program), "--config", options.config_file};
  const AboveFile above =
      with_missing(options.above, config.settings,
                   {fmt::format("run.expect_world_size={}", job.num_nodes * job.ranks_per_node),
                    fmt::format("run.expect_nodes={}", job.num_nodes)});
  job.tells_kill_wait = !is_given(config.settings, "preemption.grace_seconds");
  const std::vector<std::string> more = lockstepd_arguments(above);
  job.program.insert(job.program.end(), more.begin(), more.end());
  const std::string script = launch::sbatch_script(job);
  if (options.out_file.empty()) return {script, 0};
  files::write_atomically(options.out_file, script);
  return {fmt::format("{} written; start it with: sbatch {}\n", options.out_file,
                      shell_quoted(options.out_file)),
          0};
}

}  // namespace lockstep::daemon
