#include "daemon/launching/kubernetes_command.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/process/shell.h"
#include "base/yaml/yaml_document.h"

namespace lockstep::daemon {
namespace {

void set(KubernetesJob* job, const std::string& change) {
  job->arguments.insert(job->arguments.end(), {"--set", change});
}

/// A key of a ConfigMap has letters, digits, '-', '_' and '.'.
std::string plain(std::string name) {
  const auto stays = [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.');
  };
  for (char& c : name)
    if (!stays(static_cast<unsigned char>(c))) c = '_';
  return name;
}

/// A scalar of the run file that names a file or folder which is there, by the key's full name.
using NamedPaths = std::map<std::string, std::filesystem::path>;

/// Such scalars of a node and below it. Items of lists have no full name: that of their list
/// counts.
void find_paths(const YAML::Node& node, const std::string& key, const std::filesystem::path& folder,
                NamedPaths* found) {
  if (node.IsMap())
    for (const auto& pair : node) {
      const std::string name = pair.first.Scalar();
      find_paths(pair.second, key.empty() ? name : key + "." + name, folder, found);
    }
  if (node.IsSequence())
    for (const YAML::Node& item : node) find_paths(item, key, folder, found);
  if (!node.IsScalar() || node.Scalar().empty()) return;
  const bool looks_so = node.Scalar().find_first_of("/.") != std::string::npos;
  std::error_code ignored;
  for (const std::filesystem::path& path :
       {std::filesystem::path(node.Scalar()), folder / node.Scalar()})
    if (looks_so && std::filesystem::exists(path, ignored)) {
      found->try_emplace(key, path);
      return;
    }
}

/// Puts the file into the ConfigMap. False: another one has that name there.
bool takes(const std::filesystem::path& path, const std::string& name, KubernetesJob* job) {
  const std::string text = YamlDocument::read_text(path.string());
  return job->files.try_emplace(name, text).first->second == text;
}

/// Files in Python go with the run file; what else it names is for a person to bring.
void add_named_files(const std::string& text, const KubernetesCommandOptions& options,
                     KubernetesJob* job) {
  NamedPaths named;
  const std::filesystem::path file(options.config_file);
  find_paths(YAML::Load(text), "", file.parent_path(), &named);
  for (const auto& [key, path] : named) {
    const std::string name = plain(path.filename().string());
    const bool is_settled = key == "recipe" || key == "run.project_dir" ||
                            key == "metrics.token_file" || is_given(options.above.sets, key);
    if (is_settled) continue;
    if (path.extension() == ".py" && takes(path, name, job)) {
      set(job, fmt::format("{}=/config/{}", key, name));
      log::warning("launch", fmt::format("{}: {} goes into the ConfigMap, but not modules that it "
                                         "imports; the image needs Python with torch",
                                         key, path.string()));
    } else {
      log::warning("launch",
                   fmt::format("{}: {} is not in the manifests: put it into the image or on a "
                               "volume, and say where with --set {}=/PATH/IN/THE/POD",
                               key, path.string(), key));
    }
  }
}

/// What a pod's place decides stands above the run file.
void fill_from(const RunConfig& config, const std::string& text, KubernetesJob* job) {
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

/// What the job's size and its mpirun say, below what the user says.
AboveFile with_what_fits(const RunConfig& config, const AboveFile& above, KubernetesJob* job) {
  if (is_given(config.settings, "preemption.grace_seconds"))
    job->sigkill_timeout_s =
        static_cast<int>(std::clamp(std::ceil(config.preemption.grace_s), 1.0, 86400.0));
  return with_missing(
      above, config.settings,
      {fmt::format("run.expect_world_size={}", job->num_nodes * job->ranks_per_node),
       fmt::format("run.expect_nodes={}", job->num_nodes),
       fmt::format("preemption.grace_seconds={}", job->sigkill_timeout_s)});
}

}  // namespace

CommandResult kubernetes_command(const KubernetesCommandOptions& options) {
  const std::string text = YamlDocument::read_text(options.config_file);
  const RunConfig config = load_run_config(options.config_file, options.above, text);

  KubernetesJob job = options.job;
  fill_from(config, text, &job);
  add_named_files(text, options, &job);
  const std::vector<std::string> more =
      lockstepd_arguments(with_what_fits(config, options.above, &job));
  job.arguments.insert(job.arguments.end(), more.begin(), more.end());
  const std::string manifests = kubernetes_manifests(job);
  if (options.out_file.empty()) return {manifests, 0};
  files::write_atomically(options.out_file, manifests);
  return {fmt::format("{} written; start it with: kubectl apply -f {}\n", options.out_file,
                      shell_quoted(options.out_file)),
          0};
}

}  // namespace lockstep::daemon
