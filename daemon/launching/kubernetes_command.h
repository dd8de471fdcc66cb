#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/launching/above_file.h"
#include "daemon/launching/job_template.h"

namespace lockstep::daemon {

/// Values for the manifests of launch/kubernetes.
struct KubernetesJob {
  std::string kind = "mpijob";  ///< mpijob, jobset, trainjob
  std::string name;             ///< of the job; its volume is NAME-runs, its files NAME-run
  std::string image;
  int num_nodes = 2;       ///< pods that train
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
  AboveFile above;       ///< an estimator's path is the one in the image, and is opened here too
  std::string out_file;  ///< empty: the manifests become the command's text
  KubernetesJob job;     ///< files and arguments are filled in here
};

/// Fills in the manifests of launch/kubernetes for this run file. Reads the file first, so that its
/// faults do not wait for pods. The file, its recipe and its files in Python become files of the
/// pods. The image or a volume must contain all others.
///
/// Throws Error(kUsage) for values that Kubernetes would refuse, and for fewer GPUs than ranks.
/// Also for a grace in which mpirun cannot end its ranks.
CommandResult kubernetes_command(const KubernetesCommandOptions& options);

}  // namespace lockstep::daemon
