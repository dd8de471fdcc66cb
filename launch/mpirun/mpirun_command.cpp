#include "launch/mpirun/mpirun_command.h"

// launch/README.md explains each argument.
namespace lockstep::launch {

std::vector<std::string> mpirun_command(const MpirunOptions& options) {
  std::vector<std::string> line{"mpirun",
                                "-n",
                                std::to_string(options.num_ranks),
                                "--bind-to",
                                "none",
                                "--oversubscribe",
                                "--mca",
                                "mpi_yield_when_idle",
                                "1",
                                "--mca",
                                "btl_vader_single_copy_mechanism",
                                "none"};
  const auto add = [&line](std::initializer_list<std::string> words) {
    line.insert(line.end(), words);
  };
  if (options.is_root) add({"--allow-run-as-root"});
  if (!options.hosts.empty()) {
    // Only ssh to other hosts loses the environment; local ranks inherit it.
    add({"--host", host_list(options.hosts)});
    for (const std::string& name : options.exported) add({"-x", name});
  }
  // The user's own arguments for mpirun follow ours.
  line.insert(line.end(), options.more.begin(), options.more.end());
  line.insert(line.end(), options.program.begin(), options.program.end());
  return line;
}

}  // namespace lockstep::launch
