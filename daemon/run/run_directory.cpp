#include "daemon/run/run_directory.h"

#include <algorithm>

#include <unistd.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file_store.h"
#include "base/files/files.h"
#include "base/log.h"
#include "checkpoint/files/shared_folder.h"
#include "daemon/watch/failure.h"
#include "dist/agree.h"

// Two phases: the constructor locks an existing folder, open() creates and fills it. Between the
// two, everything that may still refuse the run is checked.
namespace lockstep::daemon {
namespace {

/// Limits the check for another run's heartbeat, because the other ranks wait for rank 0 in a
/// collective.
files::FolderLockTimes lock_times(const RunConfig& config) {
  return {.heartbeat_patience_s = std::clamp(0.8 * config.sync.timeout_s, 12.0, 30.0)};
}

}  // namespace

RunDirectory::RunDirectory(const RunConfig& config, const dist::ProcessInfo& process,
                           dist::Communicator& control)
    : config_(config), process_(process), control_(control) {
  // Without a folder there is nothing to lock yet; open() creates and locks it.
  (void)dist::on_all_ranks(control, [&] {
    std::error_code ignored;
    if (files::is_remote(config.run.project().folder()))
      throw Error(ExitCode::kConfig, "start",
                  config.run.project().folder().string() +
                      ": run.project_dir (--model_dir) must be a folder: stores are read, not "
                      "written; mount the bucket and name the folder where it is mounted");
    if (process.rank == 0 && std::filesystem::is_directory(config.run.project().folder(), ignored))
      lock_.emplace(config.run.project().folder(), lock_times(config));
    return true;
  });
}

void RunDirectory::open() {
  (void)dist::on_all_ranks(control_, [&] {
    if (process_.rank == 0) open_as_first();
    return true;
  });
  if (config_.checkpoint.enabled)
    checkpoint::require_shared(config_.run.project().checkpoints(), process_.node, control_);
  (void)dist::on_all_ranks(control_, [&] {
    open_log();
    return true;
  });
}

void RunDirectory::open_as_first() {
  files::make_folders(config_.run.project().folder());
  // Another run may have created the folder since the constructor looked.
  if (!lock_) {
    lock_.emplace(config_.run.project().folder(), lock_times(config_));
    if (!files::list(config_.run.project().checkpoints()).empty())
      throw Error(ExitCode::kCannotCreate, "start",
                  config_.run.project().folder().string() +
                      " was made and used by another run meanwhile: run again to go on from there");
  }
  if (config_.checkpoint.enabled) files::make_folders(config_.run.project().checkpoints());
  // An earlier run's summary or failure must not be taken for this run's.
  files::remove_file(config_.run.project().summary());
  remove_failures(config_.run.project().logs());
}

void RunDirectory::open_log() const {
  const std::filesystem::path logs = config_.run.project().logs();
  files::require_writable(logs);
  log::configure({.rank = process_.rank,
                  .world_size = process_.world_size,
                  .file = (logs / fmt::format("rank{}.log", process_.rank)).string()});
  log::info("start",
            fmt::format("rank {} of {} on {} (local rank {}), {} compute thread(s), pid {}",
                        process_.rank, process_.world_size, process_.node, process_.local_rank,
                        at::get_num_threads(), ::getpid()));
}

}  // namespace lockstep::daemon
