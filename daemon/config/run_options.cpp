#include "daemon/config/run_options.h"

namespace lockstep::daemon {

RunOptions read_run_options(ConfigReader in) {
  RunOptions options;
  in.require("name");
  const bool has_name =
      in.read("name", &options.name, "the run's name in logs, metrics and folders");
  options.project_dir = "runs/" + options.name;
  in.read("project_dir", &options.project_dir,
          "folder of everything the run writes; default runs/<name>");
  in.read("seed", &options.seed, at_least(0), "of initial weights and sample order");
  in.read_choice("device", &options.device, {"auto", "cpu", "cuda"},
                 "auto: a GPU for each local rank where there is one, else the CPU");
  in.read_choice("deterministic", &options.deterministic, {"false", "true", "elastic"},
                 "true: refuse operations whose bits could differ from run to run; elastic: also "
                 "the same bits on 1, 2, 4 and 8 ranks, on CPUs");
  in.read("debug", &options.debug,
          "for finding faults: samples in the data set's own order whatever data.shuffle says, and "
          "deterministic: true; elastic stays");
  in.read("expect_world_size", &options.expect_world_size, at_least(1),
          "refuse to start with another number of ranks");
  in.read("expect_nodes", &options.expect_nodes, at_least(1),
          "refuse to start on another number of hosts");
  in.read("threads", &options.threads, between(0, 1024),
          "compute threads of a rank; 0: the host's cores shared among its ranks (elastic: 1)");
  in.read_choice("bind_cores", &options.bind_cores, {"auto", "true", "false"},
                 "true: each rank stays on its share of the cores that it may use; auto: where a "
                 "host has several memory nodes");
  in.read("grace_s", &options.grace_s, at_least(0),
          "seconds between SIGTERM and the launcher's SIGKILL (mpirun: 1)");
  if (options.name.find('/') != std::string::npos)
    in.fault("name", "'run.name' must not hold a '/'");
  if (has_name && options.name.empty())
    in.fault("name", "'run.name' is empty: it names the run's folder under runs");
  if (options.name == "." || options.name == "..")
    in.fault("name", "'run.name' names a folder under runs, it must not be '" + options.name + "'");
  in.done();
  return options;
}

}  // namespace lockstep::daemon
