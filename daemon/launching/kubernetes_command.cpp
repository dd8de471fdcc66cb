#include "daemon/launching/kubernetes_command.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "base/files/files.h"
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
