#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::daemon {

/// What the manifests of launch/kubernetes are filled with.
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

/// The YAML documents that make this job, for `kubectl apply -f -`. Throws Error(kUsage) for an
/// unknown kind, for a name, an image or a quantity that Kubernetes would refuse, for fewer GPUs
/// than ranks, and for a grace in which mpirun cannot end its ranks.
std::string kubernetes_manifests(const KubernetesJob& job);

}  // namespace lockstep::daemon
