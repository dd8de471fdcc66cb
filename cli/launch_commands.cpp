#include "cli/command_line.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "cli/ctl_command.h"
#include "cli/launching.h"
#include "cli/tensor_commands.h"
#include "daemon/config/number_range.h"

// As in checkpoint_commands.cpp, each command shares its options with the parser.
namespace lockstep::cli {

using daemon::whole_number;

void add_ranks_options(CLI::App* sub, launch::RanksOptions* options) {
  sub->add_option("-n,--ranks", options->num_ranks,
                  "number of ranks. Default: the slots of the hosts; 1 without hosts")
      ->check(whole_number(1, 65536));
  sub->add_option(
      "--hosts", options->hosts,
      "hosts of the ranks: n1:4,n2:4, or @FILE of lines `n1 slots=4`. Default: this host");
  sub->add_option("--min-ranks", options->min_ranks,
                  "minimum number of ranks to continue with after hosts have failed. Default: all")
      ->check(whole_number(1, 65536));
  sub->add_option("--max-restarts", options->max_restarts,
                  "restarts in a row without a new checkpoint before the run fails")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
  sub->add_option("--grace", options->grace_s,
                  "seconds from SIGTERM or Ctrl-C, which save and stop, until all ranks are killed")
      ->check(daemon::number(0, 1e6))
      ->capture_default_str();
  sub->add_option("--program", options->program,
                  "program of each rank. Default: the lockstepd next to this program");
}

namespace {

void add_ctl(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<CtlOptions>();
  CLI::App* sub =
      app->add_subcommand("ctl", "control a running job: status, save, stop, pause, ...");
  sub->add_option("WHERE", asked->where,
                  "the run file, the run's folder, http://HOST:PORT or unix:PATH")
      ->required();
  sub->add_option(
         "WHAT", asked->verb,
         "status; save: save and continue; stop: save and stop; drain: the same, and wait "
         "for the end; pause, resume; set KEY=VALUE; kill-rank N: kill that rank's process "
         "where a spare takes its place, as a rehearsal")
      ->required()
      ->check(CLI::IsMember(
          {"status", "save", "stop", "drain", "pause", "resume", "set", "kill-rank"}));
  sub->add_option("VALUE", asked->value,
                  "for kill-rank: a rank; for set: KEY=VALUE of log.level, summary.progress_secs, "
                  "checkpoint.save_checkpoints_steps, "
                  "checkpoint.keep_checkpoint_max, eval.every_epochs, preemption.grace_seconds, "
                  "watchdog.* (slow_seconds, hang_seconds, also by phase)");
  sub->add_option("--token-file", asked->token_file,
                  "the run's metrics.token_file, if WHERE is not its run file");
  sub->add_option("--ca-file", asked->ca_file, "CA certificate of a run with TLS");
  sub->add_option("--timeout", asked->timeout_s, "time limit of drain, in seconds")
      ->check(daemon::number(0, 1e7))
      ->capture_default_str();
  set_command(sub, line, [=] { return ctl_command(*asked); });
}

void add_doctor(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<DoctorOptions>();
  CLI::App* sub = app->add_subcommand("doctor", "diagnose this host and the links between ranks");
  sub->add_option(
         "-n,--ranks", asked->num_ranks,
         "number of ranks started for the test. Default: the slots of the hosts; 2 without hosts")
      ->check(whole_number(1, 65536));
  sub->add_option(
      "--hosts", asked->hosts,
      "hosts of the ranks: n1:4,n2:4, or @FILE of lines `n1 slots=4`. Default: this host");
  sub->add_option("--program", asked->program,
                  "program of each rank. Default: the lockstepd next to this program");
  sub->footer("Returns 0, or 69 if something prevents a run.");
  set_tensor_command(sub, line, [=](auto) { return doctor_command(*asked); });
}

void add_slurm(CLI::App* parent, ParsedLine* line) {
  const auto asked = std::make_shared<SlurmCommandOptions>();
  CLI::App* sub =
      parent->add_subcommand("slurm", "a script for sbatch that trains until it is done");
  SlurmJob& job = asked->job;
  const CLI::Validator count = whole_number(1, 65536), count_from_0 = whole_number(0, 65536);
  sub->add_option("FILE", asked->config_file, "the run file")->required();
  sub->add_option("--nodes", job.num_nodes, "how many")->check(count)->capture_default_str();
  sub->add_option("--ranks-per-node", job.ranks_per_node, "one for each device")
      ->check(count)
      ->capture_default_str();
  sub->add_option("--gpus-per-rank", job.gpus_per_rank, "each rank sees only its own")
      ->check(count_from_0);
  sub->add_option("--cpus-per-rank", job.cpus_per_rank, "Default: as the cluster gives")
      ->check(count);
  sub->add_option("--time", job.time_limit,
                  "of each start, as sbatch takes it: 90 (minutes), 1:30:00, 2-12 (days-hours)")
      ->capture_default_str();
  sub->add_option("--grace", job.grace_s,
                  "seconds before that limit, to save and stop; fewer than it has")
      ->check(whole_number(1, 86400))
      ->capture_default_str();
  sub->add_option("--max-requeues", job.max_requeues, "how often the job requeues itself at most")
      ->check(count_from_0)
      ->capture_default_str();
  sub->add_option("--mpi", job.mpi, "srun --mpi")->capture_default_str();
  sub->add_option("--sbatch", job.directives, "additional sbatch option, such as --partition=long");
  sub->add_option("--program", asked->program,
                  "program of each rank. Default: the lockstepd next to this program");
  add_above_file(sub, line, &asked->above);
  sub->add_option("-o,--out", asked->out_file, "output file. Default: stdout");
  set_tensor_command(sub, line, [=](auto) { return slurm_command(*asked); });
}

void add_kubernetes(CLI::App* parent, ParsedLine* line) {
  const auto asked = std::make_shared<KubernetesCommandOptions>();
  CLI::App* sub = parent->add_subcommand(
      "kubernetes", "manifests of a job, with the run file and its recipe in them");
  KubernetesJob& job = asked->job;
  const CLI::Validator count = whole_number(1, 65536), count_from_0 = whole_number(0, 65536);
  sub->add_option("FILE", asked->config_file, "the run file")->required();
  sub->add_option("--kind", job.kind,
                  "mpijob: Kubeflow's MPI operator; jobset: no operator of MPI; trainjob: "
                  "Kubeflow's Trainer 2")
      ->capture_default_str();
  sub->add_option("--name", job.name, "of the job; NAME-run is its files, NAME-runs its volume")
      ->required();
  sub->add_option("--image", job.image, "of all pods: REGISTRY/NAME:TAG")->required();
  sub->add_option("--nodes", job.num_nodes, "number of pods that train")
      ->check(count)
      ->capture_default_str();
  sub->add_option("--ranks-per-node", job.ranks_per_node, "one for each device")
      ->check(count)
      ->capture_default_str();
  sub->add_option("--gpus-per-node", job.gpus_per_node,
                  "of each of these pods: at least one a rank, or 0")
      ->check(count_from_0)
      ->capture_default_str();
  sub->add_option("--cpus", job.cpus, "of each of these pods: 2, 500m")->capture_default_str();
  sub->add_option("--memory", job.memory, "of each of these pods: 4Gi, 512Mi")
      ->capture_default_str();
  sub->add_option("--grace", job.grace_s, "seconds that a deleted pod has to save and stop")
      ->check(whole_number(1, 86400))
      ->capture_default_str();
  sub->add_option("--storage", job.storage, "of the volume of saves, curves and logs")
      ->capture_default_str();
  add_above_file(sub, line, &asked->above);
  sub->add_option("-o,--out", asked->out_file, "output file. Default: stdout");
  set_tensor_command(sub, line, [=](auto) { return kubernetes_command(*asked); });
}

void add_run(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<RunCommandOptions>();
  CLI::App* sub =
      app->add_subcommand("run", "train to the end; start the ranks, and restart lost ones");
  sub->add_option("FILE", asked->config_file, "the run file")->required();
  add_ranks_options(sub, asked.get());
  sub->add_option(
         "--spare", asked->num_spares,
         "number of further processes that take the places of lost ranks at once, without a "
         "lost step; with --hosts the first is on the last host")
      ->check(whole_number(0, 65536))
      ->capture_default_str();
  sub->add_option("--resume", asked->resume, "of the first start, as lockstepd's")
      ->capture_default_str();
  sub->add_flag("--accept-recipe-change", asked->accept_recipe_change, "as lockstepd's");
  add_above_file(sub, line, &asked->above);
  set_tensor_command(sub, line, [=](auto) { return run_command(*asked); });
}

}  // namespace

void add_launch_commands(CLI::App* app, ParsedLine* line) {
  add_run(app, line);
  add_ctl(app, line);
  add_doctor(app, line);
  CLI::App* parent = app->add_subcommand("launch", "generate a Slurm or Kubernetes job");
  parent->require_subcommand(1);
  add_slurm(parent, line);
  add_kubernetes(parent, line);
}

}  // namespace lockstep::cli
