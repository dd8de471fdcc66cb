#include "daemon/run/run_start.h"

#include <algorithm>
#include <exception>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/store_commit.h"
#include "daemon/config/program.h"
#include "daemon/control/failure.h"
#include "train/step/step_modes.h"

// Checks that all ranks agree, and the run's folder.
namespace lockstep::daemon {
void read_ahead(const std::string& config_file, const std::vector<Override>& overrides) {
  begin_job();  // the program's own rows
  try {
    Diagnostics ignored;
    (void)load_run_config(config_file, overrides, &ignored);
  } catch (const std::exception&) {
    // The session reads the file again and reports the fault.
  }
}

// Every rank computes a text; only a digest is compared in the usual case of equality. The lines
// themselves are sent to explain a difference.

/// Compares lists of lines over the ranks. The lines are sent only if their digests differ. The
/// error contains the first differences.
static void require_equal_lines(dist::Communicator& control, const std::string& what,
                                const std::vector<std::string>& lines) {
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  if (dist::all_equal(control, fnv1a64(text))) return;
  const std::vector<std::string> texts = dist::gather_texts(control, text);
  const auto lines_of = [](const std::string& all) {
    std::vector<std::string> list = split(all);
    std::sort(list.begin(), list.end());
    return list;
  };
  const std::vector<std::string> first = lines_of(texts[0]);
  std::string message = what + " differ between ranks:";
  const auto add = [&](const auto& lines_of_one, size_t one, const auto& lines_of_other,
                       size_t other) {
    std::vector<std::string> only_one;
    std::ranges::set_difference(lines_of_one, lines_of_other, std::back_inserter(only_one));
    for (const std::string& line : only_one)
      message += fmt::format("\n  rank {} has {}, rank {} does not", one, line, other);
  };
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> other = lines_of(texts[rank]);
    add(first, 0, other, rank);
    add(other, rank, first, 0);
  }
  throw Error(ExitCode::kDisagree, "start",
              message.substr(0, 4000) + "\nstart every rank with the same files and programs")
      .everywhere();
}

void check_world_size(const RunOptions& options, const dist::ProcessInfo& process) {
  const auto refuse_if = [](bool is_wrong, const std::string& message) {
    if (is_wrong) throw Error(ExitCode::kConfig, "start", message).everywhere();
  };
  const int64_t num_ranks = options.expect_world_size.value_or(process.world_size);
  refuse_if(num_ranks != process.world_size,
            fmt::format("the world has {} rank(s), run.expect_world_size is {}: start with mpirun "
                        "-n {} or change the key",
                        process.world_size, num_ranks, num_ranks));
  const int64_t num_nodes = options.expect_nodes.value_or(process.num_nodes);
  refuse_if(num_nodes != process.num_nodes,
            fmt::format("the world spans {} host(s), run.expect_nodes is {}: check the host list "
                        "or change the key",
                        process.num_nodes, num_nodes));
  refuse_if(options.is_elastic() && !train::is_elastic_world_size(process.world_size),
            fmt::format("run.deterministic: elastic gives the same bits on 1, 2, 4 or 8 ranks, the "
                        "world has {}: start with one of these numbers, or set it to true",
                        process.world_size));
}

void check_equal_programs(const RunConfig& config, const std::string& mpi_version,
                          dist::Communicator& control) {
  const VersionFacts facts = version_facts();
  require_equal_lines(
      control, "programs or libraries",
      {"version " + facts.version, "commit " + facts.commit, "LibTorch " + facts.torch,
       "compiler " + facts.compiler, "build " + facts.build_type, "build id " + facts.build_id,
       "MPI " + mpi_version});
  // Only after the programs: other versions may have other settings.
  require_equal_lines(control, "settings", config.settings);
}

void check_equal_models(const TrainingContext& context) {
  std::vector<std::string> lines;
  for (const Param& param : context.model->params())
    lines.push_back(
        fmt::format("parameter {} [{}]", param.name, fmt::join(param.tensor.sizes(), ", ")));
  lines.push_back("training data sha256 " + context.facts.data_sha256);
  if (context.eval_data) lines.push_back("evaluation data sha256 " + context.eval_data->digest());
  require_equal_lines(context.control, "models or data", lines);
  dist::require_equal(context.control, "the recipe's timeline", context.facts.timeline);
}

// Two phases: the constructor locks an existing folder, open() creates and fills it. Between the
// two, everything that may still refuse the run is checked.

/// Limits the check for another run's heartbeat, because the other ranks wait for rank 0 in a
/// collective.
static files::FolderLockTimes lock_times(const RunConfig& config) {
  return {.heartbeat_patience_s = std::clamp(0.8 * config.sync.timeout_s, 12.0, 30.0)};
}

RunDirectory::RunDirectory(const RunConfig& config, const dist::ProcessInfo& process,
                           dist::Communicator& control)
    : config_(config), process_(process), control_(control) {
  // Without a folder there is nothing to lock yet; open() creates and locks it.
  (void)dist::on_all_ranks(control, [&] {
    if (files::is_remote(config.run.project().folder()))
      throw Error(ExitCode::kConfig, "start",
                  config.run.project().folder().string() +
                      ": run.project_dir (--model_dir) must be a folder of this host, for logs and "
                      "curves; checkpoints alone may be in a store: set checkpoint.prefix");
    if (process.rank == 0 && files::is_folder(config.run.project().folder()))
      lock_.emplace(config.run.project().folder(), lock_times(config));
    return true;
  });
}

void RunDirectory::open() {
  (void)dist::on_all_ranks(control_, [&] {
    if (process_.rank == 0) open_as_first();
    return true;
  });
  const std::filesystem::path saves = config_.checkpoint.folder(config_.run.project());
  if (config_.checkpoint.enabled && !files::is_remote(saves))
    checkpoint::require_shared(saves, process_.node, control_);
  (void)dist::on_all_ranks(control_, [&] {
    open_log();
    if (config_.checkpoint.enabled && files::is_remote(saves))
      checkpoint::require_store((saves / config_.checkpoint.prefix).string(), process_.rank);
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
                      " was created and used by another run meanwhile: run again to continue from "
                      "its state");
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
