#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "daemon/config/estimator_flags.h"
#include "daemon/config/run_config.h"
#include "daemon/serve/job_queue.h"
#include "daemon/serve/queue_client.h"
#include "daemon/serve/submit_desk.h"

// Separate from queue_client.cpp, whose commands read no run file and thus need no LibTorch.
namespace lockstep::daemon {
namespace {

bool names_project_dir(const std::vector<std::string>& sets) {
  return std::any_of(sets.begin(), sets.end(),
                     [](const std::string& set) { return set.starts_with("run.project_dir="); });
}

}  // namespace

void name_run(JobSpec* spec) {
  Diagnostics faults;
  const RunConfig config = load_run_config(
      spec->file, overrides_of(spec->sets, spec->estimator, spec->flags), &faults, spec->text);
  faults.throw_if_any("config");
  spec->run_name = config.run.name;
  if (names_project_dir(spec->sets))
    spec->project_dir = std::filesystem::absolute(config.run.project_dir).string();
}

CommandResult submit_command(const SubmitOptions& options) {
  JobSpec spec = spec_of(options);
  name_run(&spec);
  return {fmt::format("{}\n", JobQueue(options.queue).submit(std::move(spec))), 0};
}

}  // namespace lockstep::daemon
