#include "daemon/launching/kubernetes_manifests.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/yaml/yaml_writer.h"
#include "daemon/config/key_names.h"
#include "daemon/launching/kubernetes_quantity.h"

// The files of launch/kubernetes, put into the program by kubernetes_files.S
extern "C" const char lockstep_k8s_volume_begin[], lockstep_k8s_network_begin[];
extern "C" const char lockstep_k8s_monitor_begin[], lockstep_k8s_mpijob_begin[];
extern "C" const char lockstep_k8s_jobset_begin[], lockstep_k8s_runtime_begin[];
extern "C" const char lockstep_k8s_trainjob_begin[];

namespace lockstep::daemon {
namespace {

constexpr size_t kMaxNameBytes = 40;  ///< pods' names, which are longer, have at most 63
constexpr const char* kLabel = "app.kubernetes.io/name";

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ExitCode::kUsage, "launch", message);
}

/// RFC 1123's label, which begins with a letter.
bool is_label(std::string_view name) {
  const auto fits = [](unsigned char c) {
    return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::islower(static_cast<unsigned char>(name.front())) != 0 && name.back() != '-' &&
         std::all_of(name.begin(), name.end(), fits);
}

void require_quantity(const char* option, const std::string& text, double least,
                      const char* example) {
  const auto amount = kubernetes_quantity(text);
  if (!amount)
    refuse(fmt::format("{} '{}' is no quantity of Kubernetes: write {}", option, printable(text),
                       example));
  if (*amount < least)
    refuse(fmt::format("{} {} is too little ({:g}): write {}", option, text, *amount, example));
}

void require_resources(const KubernetesJob& job) {
  constexpr double kMiB = 1024 * 1024;
  require_quantity("--cpus", job.cpus, 0.001, "cores, as 2 or 500m");
  require_quantity("--memory", job.memory, kMiB, "bytes with their unit, as 4Gi or 512Mi");
  require_quantity("--storage", job.storage, kMiB, "bytes with their unit, as 20Gi");
  if (job.gpus_per_node > 0 && job.gpus_per_node < job.ranks_per_node)
    refuse(
        fmt::format("--gpus-per-node {} is too few for --ranks-per-node {}, as each rank needs "
                    "a GPU of its own: write --gpus-per-node {}, or fewer ranks",
                    job.gpus_per_node, job.ranks_per_node, job.ranks_per_node));
}

/// mpirun waits for its timeout before it passes SIGTERM on, and for as long before SIGKILL.
void require_grace(const KubernetesJob& job) {
  const int least_s = 2 * job.sigkill_timeout_s + 5;
  if (job.grace_s < least_s)
    refuse(
        fmt::format("--grace {} is too short for preemption.grace_seconds {}, with which mpirun "
                    "takes twice that to end its ranks: write --grace {} or more",
                    job.grace_s, job.sigkill_timeout_s, least_s));
}

void require_sound(const KubernetesJob& job) {
  if (!is_label(job.name))
    refuse(
        fmt::format("--name '{}': Kubernetes takes small letters, digits and '-', at most {} of "
                    "them, a letter first and no '-' last",
                    printable(job.name), kMaxNameBytes));
  const bool is_word = std::all_of(job.image.begin(), job.image.end(),
                                   [](unsigned char c) { return std::isgraph(c) != 0; });
  if (job.image.empty() || !is_word)
    refuse(fmt::format("--image '{}': name one as REGISTRY/NAME:TAG", printable(job.image)));
  require_resources(job);
  require_grace(job);
}

/// A text whatever stood in its place: an assigned string would stay plain where that was plain,
/// and `no` and `1.5` be none.
YAML::Node text_of(const std::string& value) { return YAML::Node(value); }
YAML::Node number(int value) { return YAML::Load(std::to_string(value)); }

/// The files that say what the job is.
std::vector<YAML::Node> documents_of(const std::string& kind) {
  std::vector<const char*> texts{lockstep_k8s_volume_begin, lockstep_k8s_network_begin,
                                 lockstep_k8s_monitor_begin};
  if (kind == "mpijob")
    texts.push_back(lockstep_k8s_mpijob_begin);
  else if (kind == "jobset")
    texts.push_back(lockstep_k8s_jobset_begin);
  else if (kind == "trainjob")
    texts.insert(texts.end(), {lockstep_k8s_runtime_begin, lockstep_k8s_trainjob_begin});
  else
    refuse(fmt::format("--kind '{}': there are mpijob, jobset and trainjob", kind));
  std::vector<YAML::Node> documents;
  for (const char* text : texts) documents.push_back(YAML::Load(text));
  return documents;
}

YAML::Node config_map(const KubernetesJob& job) {
  YAML::Node map = YAML::Load("{apiVersion: v1, kind: ConfigMap, metadata: {name: run}}");
  map["metadata"]["name"] = text_of(job.name + "-run");
  for (const auto& [name, text] : job.files) map["data"][name] = text;
  return map;
}

/// Hosts of JobSet's worker pods; other kinds' operators write a host file.
std::string host_list(const KubernetesJob& job) {
  std::vector<std::string> hosts;
  for (int node = 0; node < job.num_nodes; ++node)
    hosts.push_back(fmt::format("{0}-worker-0-{1}.{0}:{2}", job.name, node, job.ranks_per_node));
  return fmt::format("{}", fmt::join(hosts, ","));
}

YAML::Node filled_command(const YAML::Node& command, const KubernetesJob& job) {
  YAML::Node filled;
  std::string before;
  for (const YAML::Node& word : command) {
    if (before == "odls_base_sigkill_timeout")
      filled.push_back(std::to_string(job.sigkill_timeout_s));
    else if (before == "-n")
      filled.push_back(std::to_string(job.num_nodes * job.ranks_per_node));
    else if (before == "-host")
      filled.push_back(host_list(job));
    else
      filled.push_back(word.Scalar());
    before = word.Scalar();
  }
  for (const std::string& argument : job.arguments) filled.push_back(argument);
  return filled;
}

YAML::Node resources_of(const KubernetesJob& job) {
  YAML::Node resources;
  for (const char* bound : {"requests", "limits"}) {
    resources[bound]["cpu"] = job.cpus;
    resources[bound]["memory"] = job.memory;
  }
  if (job.gpus_per_node > 0) resources["limits"]["nvidia.com/gpu"] = number(job.gpus_per_node);
  return resources;
}

/// A pod's container that trains has the volume of the runs.
bool trains(const YAML::Node& container) {
  const YAML::Node mounts = container["volumeMounts"];
  return mounts.IsDefined() && mounts.size() > 1;
}

bool calls_mpirun(const YAML::Node& command) {
  return std::any_of(command.begin(), command.end(),
                     [](const YAML::Node& word) { return word.Scalar() == "mpirun"; });
}

/// What stands at many places.
void fill_everywhere(YAML::Node node, const KubernetesJob& job) {
  if (node.IsSequence())
    for (YAML::Node item : node) fill_everywhere(item, job);
  if (!node.IsMap()) return;
  if (node["image"]) {
    node["image"] = text_of(job.image);
    if (trains(node)) node["resources"] = resources_of(job);
  }
  if (node["claimName"]) node["claimName"] = text_of(job.name + "-runs");
  if (node["configMap"]) node["configMap"]["name"] = text_of(job.name + "-run");
  if (node["command"] && calls_mpirun(node["command"]))
    node["command"] = filled_command(node["command"], job);
  if (node["terminationGracePeriodSeconds"])
    node["terminationGracePeriodSeconds"] = number(job.grace_s);
  if (node[kLabel]) node["app.kubernetes.io/instance"] = text_of(job.name);
  for (auto pair : node) fill_everywhere(pair.second, job);
}

/// What one kind has at one place.
void fill_kind(YAML::Node document, const KubernetesJob& job) {
  const std::string kind = document["kind"].Scalar();
  YAML::Node spec = document["spec"];
  const YAML::Node nodes = number(job.num_nodes), ranks = number(job.ranks_per_node);
  document["metadata"]["name"] =
      text_of(kind == "PersistentVolumeClaim" ? job.name + "-runs" : job.name);
  if (kind == "PersistentVolumeClaim")
    spec["resources"]["requests"]["storage"] = text_of(job.storage);
  if (kind == "MPIJob") {
    spec["slotsPerWorker"] = ranks;
    spec["mpiReplicaSpecs"]["Worker"]["replicas"] = nodes;
  } else if (kind == "JobSet") {
    spec["network"]["subdomain"] = text_of(job.name);
    spec["replicatedJobs"][0]["template"]["spec"]["completions"] = nodes;
    spec["replicatedJobs"][0]["template"]["spec"]["parallelism"] = number(job.num_nodes);
  } else if (kind == "TrainingRuntime") {
    spec["mlPolicy"]["numNodes"] = nodes;
    spec["mlPolicy"]["mpi"]["numProcPerNode"] = ranks;
  } else if (kind == "TrainJob") {
    spec["runtimeRef"]["name"] = text_of(job.name);
    spec["trainer"]["numNodes"] = nodes;
  }
}

}  // namespace

std::string kubernetes_manifests(const KubernetesJob& job) {
  require_sound(job);
  std::string all = yaml_text(config_map(job));
  for (const YAML::Node& document : documents_of(job.kind)) {
    fill_everywhere(document, job);
    fill_kind(document, job);
    all += "---\n" + yaml_text(document);
  }
  return all;
}

}  // namespace lockstep::daemon
