#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/lock_holder.h"
#include "base/yaml/yaml_document.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/config/run_config.h"
#include "daemon/serve/job_queue.h"
#include "daemon/serve/queue_client.h"

// Apart from the other commands around a queue, which read no run file and so need no LibTorch.
namespace lockstep::daemon {
namespace {

bool names_project_dir(const std::vector<std::string>& sets) {
  return std::any_of(sets.begin(), sets.end(),
                     [](const std::string& set) { return set.starts_with("run.project_dir="); });
}

}  // namespace

CommandResult submit_command(const SubmitOptions& options) {
  const std::string text = YamlDocument::read_text(options.config_file);
  Diagnostics faults;
  const RunConfig config =
      load_run_config(options.config_file,
                      overrides_of(options.sets, options.estimator, options.flags), &faults, text);
  faults.throw_if_any("config");
  JobSpec spec{.file = std::filesystem::absolute(options.config_file).string(),
               .text = text,
               .folder = std::filesystem::current_path().string(),
               .sets = options.sets,
               .estimator = options.estimator,
               .flags = options.flags,
               .run_name = config.run.name,
               .submitted = files::utc_now()};
  if (names_project_dir(options.sets))
    spec.project_dir = std::filesystem::absolute(config.run.project_dir).string();
  return {fmt::format("{}\n", JobQueue(options.queue).submit(std::move(spec))), 0};
}

}  // namespace lockstep::daemon
