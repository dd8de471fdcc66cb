#include "cli/launching.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/yaml/yaml_document.h"
#include "daemon/config/overrides.h"
#include "daemon/config/run_config.h"

namespace lockstep::cli {
namespace {

void require_valid(bool fact, const std::string& message) {
  if (!fact) throw Error(ExitCode::kUsage, "launch", message);
}

/// Returns the number of a Kubernetes quantity: 2, 500m, 1.5, 4Gi, 20G, 1e9. Negative for another
/// text.
double amount_of(const std::string& text) {
  static const std::regex form(
      R"(\+?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?(?:1[0-8]|0?\d))?)");
  std::smatch part;
  if (!std::regex_match(text, part, form)) return -1;
  const std::string number = part[1], suffix = part[2];
  double amount = 0;
  std::from_chars(number.data(), number.data() + number.size(), amount);
  const auto place_in = [&](std::string_view units) {
    return static_cast<int>(units.find(suffix.front()));
  };
  if (suffix.empty()) return amount;
  if (suffix.back() == 'i') return amount * std::pow(1024, place_in(" KMGTPE"));
  if (suffix.size() > 1) return amount * std::pow(10, std::stoi(suffix.substr(1)));
  return amount * std::pow(1000, place_in("num kMGTPE") - 3);
}

void require_quantity(const char* option, const std::string& text, double least,
                      const char* example) {
  const double amount = amount_of(text);
  require_valid(amount >= 0, fmt::format("{} '{}' is not a quantity of Kubernetes: write {}",
                                         option, daemon::printable(text), example));
  require_valid(amount >= least,
                fmt::format("{} {} is too little ({:g}): write {}", option, text, amount, example));
}

/// Throws Error(kUsage) for values that Kubernetes or mpirun would refuse later.
void require_sound(const KubernetesJob& job) {
  constexpr double kMiB = 1024 * 1024;
  // RFC 1123. Names of pods are longer than the job's and limited to 63 characters.
  require_valid(std::regex_match(job.name, std::regex("[a-z]([a-z0-9-]{0,38}[a-z0-9])?")),
                fmt::format("--name '{}': Kubernetes allows at most 40 lower-case letters, digits "
                            "and '-', a letter first and no '-' last",
                            daemon::printable(job.name)));
  require_valid(
      std::regex_match(job.image, std::regex("[!-~]+")),
      fmt::format("--image '{}': name one as REGISTRY/NAME:TAG", daemon::printable(job.image)));
  require_quantity("--cpus", job.cpus, 0.001, "cores, as 2 or 500m");
  require_quantity("--memory", job.memory, kMiB, "bytes with their unit, as 4Gi or 512Mi");
  require_quantity("--storage", job.storage, kMiB, "bytes with their unit, as 20Gi");
  require_valid(job.gpus_per_node == 0 || job.gpus_per_node >= job.ranks_per_node,
                fmt::format("--gpus-per-node {} is too few for --ranks-per-node {}, as each rank "
                            "needs its own GPU: write --gpus-per-node {}, or fewer ranks",
                            job.gpus_per_node, job.ranks_per_node, job.ranks_per_node));
  // mpirun waits for this timeout before it passes SIGTERM on, and again before SIGKILL.
  const int least_s = 2 * job.sigkill_timeout_s + 5;
  require_valid(
      job.grace_s >= least_s,
      fmt::format("--grace {} is too short for preemption.grace_seconds {}, with which mpirun "
                  "takes twice that to end its ranks: write --grace {} or more",
                  job.grace_s, job.sigkill_timeout_s, least_s));
}

/// Returns a text in double quotes. YAML reads JSON's escapes.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// True if a literal block of YAML preserves the text: printable lines, each with its newline.
bool is_block(const std::string& text) {
  return text.size() > 1 && text.front() != ' ' && text.front() != '\n' && text.back() == '\n' &&
         text[text.size() - 2] != '\n' &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c == '\n' || (c >= 0x20 && c != 0x7f); });
}

/// Returns the ConfigMap with the run file, the recipe and Python files.
std::string config_map(const KubernetesJob& job) {
  std::string map =
      fmt::format("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}-run}}\ndata:\n", job.name);
  for (const auto& [name, text] : job.files)
    map += is_block(text) ? fmt::format("  {}: |\n    {}\n", quoted(name),
                                        std::regex_replace(text.substr(0, text.size() - 1),
                                                           std::regex("\n"), "\n    "))
                          : fmt::format("  {}: {}\n", quoted(name), quoted(text));
  return map;
}

std::string resources_of(const KubernetesJob& job) {
  const std::string bounds =
      fmt::format("cpu: {}, memory: {}", quoted(job.cpus), quoted(job.memory));
  const std::string gpus =
      job.gpus_per_node > 0 ? fmt::format(", nvidia.com/gpu: {}", job.gpus_per_node) : "";
  return fmt::format("{{requests: {{{}}}, limits: {{{}{}}}}}", bounds, bounds, gpus);
}

/// Returns the values for places that the templates of all kinds have.
TemplateValues common_values(const KubernetesJob& job) {
  std::string arguments;
  for (const std::string& argument : job.arguments) arguments += ", " + quoted(argument);
  const std::string name = quoted(job.name);
  return {{"lockstep:0.1.0", quoted(job.image)},
          {"metadata: {name: lockstep}", fmt::format("metadata: {{name: {}}}", name)},
          {"instance: lockstep", "instance: " + name},
          {"lockstep-runs", job.name + "-runs"},
          {"configMap: {name: lockstep-run}", fmt::format("configMap: {{name: {}-run}}", job.name)},
          {"storage: 20Gi", "storage: " + quoted(job.storage)},
          {"PeriodSeconds: 300", fmt::format("PeriodSeconds: {}", job.grace_s)},
          {"-n, \"2\"", fmt::format("-n, \"{}\"", int64_t{job.num_nodes} * job.ranks_per_node)},
          {"timeout, \"10\"", fmt::format("timeout, \"{}\"", job.sigkill_timeout_s)},
          {"/config/run.yaml]", "/config/run.yaml" + arguments + "]"},
          {R"({requests: {cpu: "2", memory: 4Gi}, limits: {cpu: "2", memory: 4Gi}})",
           resources_of(job)}};
}

/// Returns all manifests of the job's kind in one text.
std::string manifests_of(const KubernetesJob& job) {
  require_sound(job);
  TemplateValues values = common_values(job);
  // Replaces the last word of a template's text.
  const auto add = [&](const std::string& text, auto value) {
    values.emplace_back(text, text.substr(0, text.rfind(' ') + 1) + fmt::format("{}", value));
  };
  if (job.kind == "mpijob") {
    add("slotsPerWorker: 1", job.ranks_per_node);
    add("replicas: 2", job.num_nodes);
    return config_map(job) + filled(lockstep_mpijob, values);
  }
  if (job.kind == "jobset") {
    std::vector<std::string> hosts;  // operators of other kinds write a host file themselves
    for (int node = 0; node < job.num_nodes; ++node)
      hosts.push_back(fmt::format("{0}-worker-0-{1}.{0}:{2}", job.name, node, job.ranks_per_node));
    add("-host, \"lockstep-worker-0-0.lockstep:1,lockstep-worker-0-1.lockstep:1\"",
        quoted(fmt::format("{}", fmt::join(hosts, ","))));
    add("subdomain: lockstep", quoted(job.name));
    add("completions: 2", job.num_nodes);
    add("parallelism: 2", job.num_nodes);
    return config_map(job) + filled(lockstep_jobset, values);
  }
  require_valid(job.kind == "trainjob",
                fmt::format("--kind '{}': available are mpijob, jobset and trainjob", job.kind));
  add("kind: TrainingRuntime, name: lockstep", quoted(job.name));
  add("numNodes: 2", job.num_nodes);
  add("numProcPerNode: 1", job.ranks_per_node);
  return config_map(job) + filled(lockstep_trainjob, values);
}

void set(KubernetesJob* job, const std::string& change) {
  job->arguments.insert(job->arguments.end(), {"--set", change});
}

/// Converts a name to a ConfigMap key: letters, digits, '-', '_' and '.'.
std::string plain(const std::string& name) {
  return std::regex_replace(name, std::regex("[^-A-Za-z0-9_.]"), "_");
}

/// Existing files and folders named by scalars of the run file, by the full name of the key.
using NamedPaths = std::map<std::string, std::filesystem::path>;

/// Searches a node and its children. Items of lists have no full name, so the list's name counts.
void find_paths(const YAML::Node& node, const std::string& key, const std::filesystem::path& folder,
                NamedPaths* found) {
  if (node.IsMap())
    for (const auto& pair : node) {
      const std::string name = pair.first.Scalar();
      find_paths(pair.second, key.empty() ? name : key + "." + name, folder, found);
    }
  if (node.IsSequence())
    for (const YAML::Node& item : node) find_paths(item, key, folder, found);
  // Only texts with a slash or a dot look like paths.
  if (!node.IsScalar() || node.Scalar().find_first_of("/.") == std::string::npos) return;
  for (const std::filesystem::path& path :
       {std::filesystem::path(node.Scalar()), folder / node.Scalar()})
    if (files::exists(path)) {
      found->try_emplace(key, path);
      return;
    }
}

/// Adds Python files that the run file names. The user must provide all other named files.
void add_named_files(const std::string& text, const KubernetesCommandOptions& options,
                     KubernetesJob* job) {
  // False if another file of the ConfigMap has that name.
  const auto takes = [&](const std::filesystem::path& path, const std::string& name) {
    const std::string code = YamlDocument::read_text(path.string());
    return job->files.try_emplace(name, code).first->second == code;
  };
  NamedPaths named;
  const std::filesystem::path file(options.config_file);
  find_paths(YAML::Load(text), "", file.parent_path(), &named);
  for (const auto& [key, path] : named) {
    const std::string name = plain(path.filename().string());
    // Keys that this command or the command line sets anyway.
    const bool is_settled = key == "recipe" || key == "run.project_dir" ||
                            key == "metrics.token_file" || is_given(options.above.sets, key);
    if (is_settled) continue;
    if (path.extension() == ".py" && takes(path, name)) {
      set(job, fmt::format("{}=/config/{}", key, name));
      log::warning("launch", fmt::format("{}: {} is copied to the ConfigMap, but not modules that "
                                         "it imports; the image needs Python with torch",
                                         key, path.string()));
    } else {
      log::warning("launch",
                   fmt::format("{}: {} is not in the manifests: put it into the image or on a "
                               "volume, and give its path with --set {}=/PATH/IN/THE/POD",
                               key, path.string(), key));
    }
  }
}

/// Adds the run file and the settings that depend on a pod's paths. These override the run file.
void fill_from(const daemon::RunConfig& config, const std::string& text, KubernetesJob* job) {
  job->files["run.yaml"] = text;
  const std::string& recipe = config.recipe.file();
  if (!recipe.empty() && recipe != config.file) {
    const std::string name = "recipe" + plain(std::filesystem::path(recipe).extension().string());
    job->files[name] = YamlDocument::read_text(recipe);
    set(job, "recipe=/config/" + name);
  }
  set(job, fmt::format("run.project_dir=/runs/{}", job->name));
  set(job, "metrics.listen='0.0.0.0:9464'");
  set(job, "metrics.token_file=/token/token");
  if (job->gpus_per_node > 0) set(job, "run.device=cuda");
}

/// Adds settings that follow from the job's size and its mpirun. The user's own settings override
/// them.
daemon::AboveFile with_what_fits(const daemon::RunConfig& config, const daemon::AboveFile& above,
                                 KubernetesJob* job) {
  if (is_given(config.settings, "preemption.grace_seconds"))
    job->sigkill_timeout_s =
        static_cast<int>(std::clamp(std::ceil(config.preemption.grace_s), 1.0, 86400.0));
  return with_missing(
      above, config.settings,
      {fmt::format("run.expect_world_size={}", int64_t{job->num_nodes} * job->ranks_per_node),
       fmt::format("run.expect_nodes={}", job->num_nodes),
       fmt::format("preemption.grace_seconds={}", job->sigkill_timeout_s)});
}

}  // namespace

daemon::CommandResult kubernetes_command(const KubernetesCommandOptions& options) {
  const std::string text = YamlDocument::read_text(options.config_file);
  const daemon::RunConfig config =
      daemon::require_run_config(options.config_file, daemon::overrides_of(options.above), text);
  KubernetesJob job = options.job;
  fill_from(config, text, &job);
  add_named_files(text, options, &job);
  const std::vector<std::string> more =
      lockstepd_arguments(with_what_fits(config, options.above, &job));
  job.arguments.insert(job.arguments.end(), more.begin(), more.end());
  return job_result(manifests_of(job), options.out_file, "kubectl apply -f");
}

}  // namespace lockstep::cli
