#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/config/estimator_flags.h"
#include "daemon/config/program.h"
#include "launch/ranks.h"

/// Commands of `lockstep` that start runs: on hosts, with Slurm, in Kubernetes.
namespace lockstep::cli {

/// Returns the same settings as arguments for lockstepd: --set TEXT... --estimator LIB -- FLAGS.
std::vector<std::string> lockstepd_arguments(const daemon::AboveFile& above);

/// True if one of RunConfig's settings has this key.
bool is_given(const std::vector<std::string>& settings, const std::string& key);

/// Returns `above`, completed by each of `sets` (KEY=VALUE) whose key neither the run file nor
/// `above` sets. `settings`: from RunConfig. The added ones are weaker than `above`.
daemon::AboveFile with_missing(daemon::AboveFile above, const std::vector<std::string>& settings,
                               const std::vector<std::string>& sets);

/// The command line of `lockstep run`.
struct RunCommandOptions : launch::RanksOptions {
  std::string config_file;
  daemon::AboveFile above;
  std::string resume = "auto";  ///< for the first start; later ones use auto
  bool accept_recipe_change = false;
};

/// Trains until the run is done: starts the ranks with mpirun and supervises them
/// (launch/supervisor.h). Reads the run file first, so nothing starts if it has faults.
daemon::CommandResult run_command(const RunCommandOptions& options);

}  // namespace lockstep::cli

// Templates of launch/slurm and launch/kubernetes, put into the program by job_templates.S
extern "C" const char lockstep_slurm_job[], lockstep_mpijob[], lockstep_jobset[],
    lockstep_trainjob[];

namespace lockstep::cli {

/// Text of a template, and what replaces it.
using TemplateValues = std::vector<std::pair<std::string, std::string>>;

/// Returns the template with every occurrence of each text replaced. If several texts match at one
/// place, the first of `values` counts; replacements are not searched again. Throws Error(kBug) if
/// the template does not contain one of the texts.
std::string filled(std::string_view job_template, const TemplateValues& values);

/// Returns the job itself if out_file is empty. Otherwise writes it there and returns the command
/// that starts it: `start` and the path.
daemon::CommandResult job_result(const std::string& job, const std::string& out_file,
                                 const std::string& start);

/// Slurm job that trains until the run is done.
struct SlurmJob {
  std::string name;                  ///< of the job, and of its log: NAME-<number>.log
  std::vector<std::string> program;  ///< command of each rank, with its arguments
  int num_nodes = 1;
  int ranks_per_node = 1;
  std::string time_limit = "24:00:00";  ///< in the form of sbatch --time
  int grace_s = 300;                    ///< seconds before the limit, to save and stop
  int max_requeues = 50;
  bool tells_kill_wait = true;          ///< sets preemption.grace_seconds to the cluster's KillWait
  int gpus_per_rank = 0;                ///< each rank sees only its own GPUs
  int cpus_per_rank = 0;                ///< 0: the cluster's default
  std::string mpi = "pmix";             ///< srun --mpi
  std::vector<std::string> directives;  ///< further directives, such as "--partition=long"
};

/// Fills in launch/slurm/job.sbatch. Throws Error(kUsage) for a job that sbatch or srun would
/// refuse and for an array. Also for a time limit not longer than the grace.
std::string sbatch_script(const SlurmJob& job);

/// Seconds of a time as sbatch's --time takes it: minutes, minutes:seconds, hours:minutes:seconds,
/// days-hours, days-hours:minutes, days-hours:minutes:seconds. 0: no limit (0, UNLIMITED,
/// INFINITE). nullopt for any other text.
std::optional<int64_t> slurm_time_s(const std::string& text);

/// The command line of `lockstep launch slurm`.
struct SlurmCommandOptions {
  std::string config_file;
  daemon::AboveFile above;
  std::string program;   ///< command of each rank; empty: the lockstepd next to this program
  std::string out_file;  ///< empty: the script becomes the command's text
  SlurmJob job;          ///< name and program are filled in here
};

/// Returns the script that trains this run file under Slurm. Reads the file first, so its faults
/// are found before the job waits in a queue.
daemon::CommandResult slurm_command(const SlurmCommandOptions& options);

/// Values for the manifests of launch/kubernetes.
struct KubernetesJob {
  std::string kind = "mpijob";  ///< mpijob, jobset, trainjob
  std::string name;             ///< of the job; its volume is NAME-runs, its files NAME-run
  std::string image;
  int num_nodes = 2;       ///< number of pods that train
  int ranks_per_node = 1;  ///< of one pod
  int gpus_per_node = 0;
  int grace_s = 300;           ///< a pod that is deleted has these seconds to save and stop
  int sigkill_timeout_s = 10;  ///< of mpirun: from SIGTERM of a rank until it is killed
  std::string cpus = "2", memory = "4Gi", storage = "20Gi";  ///< of a pod, and of the volume
  std::map<std::string, std::string> files;                  ///< text by name, found in /config
  std::vector<std::string> arguments;                        ///< further ones of lockstepd
};

/// The command line of `lockstep launch kubernetes`.
struct KubernetesCommandOptions {
  std::string config_file;
  daemon::AboveFile above;  ///< an estimator's path is the one in the image, and is opened here too
  std::string out_file;     ///< empty: the manifests become the command's text
  KubernetesJob job;        ///< files and arguments are filled in here
};

/// Fills in the manifests of launch/kubernetes for this run file. Reads the file first, so that its
/// faults do not wait for pods. The file, its recipe and its files in Python become files of the
/// pods. The image or a volume must contain all others.
///
/// Throws Error(kUsage) for values that Kubernetes would refuse, and for fewer GPUs than ranks.
/// Also for a grace in which mpirun cannot end its ranks.
daemon::CommandResult kubernetes_command(const KubernetesCommandOptions& options);

}  // namespace lockstep::cli
