#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "checkpoint/tools/inspect.h"
#include "cli/evaluator_job.h"
#include "cli/tensor_commands.h"
#include "daemon/control/signals.h"
#include "plot/plot.h"

// `lockstep eval`, and the watch over a run that is in progress.
namespace lockstep::cli {

// Watched run: the run writes its files while they are watched. So a missing or incomplete file is
// normal here and never an error.

namespace {

/// Reads a small JSON file; null if that is not possible.
nlohmann::json small_json(const std::filesystem::path& path) {
  constexpr int64_t kMaxBytes = int64_t{1} << 24;  // metrics of many classes are long
  if (!files::is_file(path)) return {};
  try {
    nlohmann::json json = nlohmann::json::parse(files::read(path, kMaxBytes), nullptr, false);
    return json.is_object() ? json : nlohmann::json();
  } catch (const Error&) {  // too large, or just removed: a run that begins removes its summary
    return {};
  }
}

std::string text_at(const nlohmann::json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

/// True if the run ended with a code after which its job restarts it.
bool is_restarted(const nlohmann::json& summary) {
  const auto code = summary.find("exit_code");
  return code != summary.end() && (*code == static_cast<int>(ExitCode::kUnavailable) ||
                                   *code == static_cast<int>(ExitCode::kWatchdog));
}

/// Returns the text at a key of a small JSON file that another process may have written. Empty if
/// the file does not exist (it may vanish at any time) or has no text at this key.
std::string text_in_json(const std::filesystem::path& path, const std::string& key) {
  return text_at(small_json(path), key);
}

/// True if the run's summary says that it has ended for good. A run that was stopped or killed
/// will be started again. A run that lost a peer or hung (69, 79) is restarted by its job.
bool has_ended(const std::filesystem::path& summary) {
  const nlohmann::json json = small_json(summary);
  const std::string reason = text_at(json, "exit_reason");
  if (reason.empty() || reason == "stopped" || reason == "ended") return false;
  return reason != "failed" || !is_restarted(json);
}

/// Folders that must not be replaced while they are watched.
class WatchedFolders {
 public:
  explicit WatchedFolders(std::vector<std::filesystem::path> folders)
      : folders_(std::move(folders)) {}

  /// Throws Error(kInputMissing) if a folder that existed at an earlier call was removed, renamed
  /// or replaced.
  void require_same() {
    for (const std::filesystem::path& folder : folders_) {
      struct stat facts {};
      const bool is_there = ::stat(folder.c_str(), &facts) == 0;
      // A file server may come back.
      if (!is_there && errno != ENOENT && errno != ENOTDIR) continue;
      const Identity identity{facts.st_dev, facts.st_ino};
      if (!is_there && !seen_.contains(folder)) continue;  // the run has not begun
      // The first identity of a folder is recorded; later ones must equal it.
      if (is_there && seen_.try_emplace(folder, identity).first->second == identity) continue;
      throw Error(ExitCode::kInputMissing, "eval",
                  fmt::format("{} was removed or renamed while it was watched: restart the watcher "
                              "for the run to evaluate",
                              folder.string()));
    }
  }

 private:
  using Identity = std::pair<uint64_t, uint64_t>;  ///< device, inode

  const std::vector<std::filesystem::path> folders_;
  std::map<std::filesystem::path, Identity> seen_;
};

constexpr std::chrono::milliseconds kPoll{200}, kPollOfStore{5000};

/// Thrown between two batches when a signal requests the end.
struct Stopped {};

void require_going_on(const daemon::Signals& signals) {
  if (signals.end_asked() || signals.stop_asked()) throw Stopped();
}

/// Evaluates the checkpoints of a run as they appear. The lock admits one watcher per folder.
class Watch {
 public:
  Watch(const daemon::Signals& signals, EvaluatorJob* job)
      : signals_(signals),
        job_(*job),
        folders_(
            {job_.config().run.project().folder(), job_.results_folder(), job_.saves_folder()}) {
    files::make_folders(job_.results_folder());
    // Locks the results against a second watcher.
    lock_.emplace(job_.results_folder());
  }

  daemon::CommandResult until_the_run_ends() {
    log::info("eval", fmt::format("watching {} for checkpoints", job_.saves_folder().string()));
    try {
      while (true) {
        folders_.require_same();
        // Read before look(): a checkpoint written just before the run's end is then still
        // evaluated.
        const bool is_last_look = has_ended(job_.config().run.project().summary());
        const bool found_any = look();
        if (is_last_look && !found_any) break;
        if (!found_any)
          std::this_thread::sleep_for(files::is_remote(job_.saves_folder()) ? kPollOfStore : kPoll);
        require_going_on(signals_);
      }
    } catch (const Stopped&) {
      return {told("stopped on request; run again to continue"),
              static_cast<int>(ExitCode::kStopped)};
    }
    return {told("the run has ended"),
            num_damaged_ == 0 ? 0 : static_cast<int>(ExitCode::kBadData)};
  }

 private:
  /// Evaluates all existing checkpoints that were not evaluated yet. Returns false if there is
  /// none.
  bool look() {
    bool found_any = false;
    for (const auto& save :
         checkpoint::find_saves(job_.saves_folder(), job_.config().checkpoint.prefix)) {
      require_going_on(signals_);
      const auto written = files::written_at(checkpoint::index_path(save.prefix));
      // A checkpoint may vanish at any time, or be replaced by one of the same number.
      if (!written || (seen_.contains(save.number) && seen_[save.number] == *written)) continue;
      const auto sha256 = index_sha256(save.prefix);
      if (!sha256) continue;
      if (!is_evaluated(save.number, *sha256)) {
        if (!evaluate(save.prefix)) continue;
        found_any = true;
      }
      // Skips the hashing of this index file until it changes.
      seen_[save.number] = *written;
    }
    return found_any;
  }

  /// True if the result file belongs to this checkpoint and these settings.
  bool is_evaluated(int64_t step, const std::string& sha256) const {
    const auto path = job_.results_folder() / fmt::format("step-{}.json", step);
    return text_in_json(path, "index_sha256") == sha256 &&
           text_in_json(path, "settings_sha256") == job_.settings_sha256();
  }

  /// Evaluates one checkpoint. Returns false if it was gone before it was read.
  bool evaluate(const std::string& prefix) {
    try {
      const auto line = job_.evaluate(prefix, [this] { require_going_on(signals_); });
      if (line) ++num_evaluated_;
      log::info("eval",
                line ? *line : prefix + " was removed or replaced while it was read: skipped");
      return line.has_value();
    } catch (const Error& fault) {
      // Only damage or absence is the checkpoint's own fault; other errors end the watcher.
      if (fault.code() != ExitCode::kBadData && fault.code() != ExitCode::kInputMissing) throw;
      log::warning("eval", fmt::format("{} cannot be evaluated: {}", prefix, fault.what()));
      ++num_damaged_;
      return true;
    }
  }

  std::string told(const std::string& why) const {
    return fmt::format("{} checkpoint(s) evaluated, {} damaged: {}\n", num_evaluated_, num_damaged_,
                       why);
  }

  const daemon::Signals& signals_;
  EvaluatorJob& job_;
  WatchedFolders folders_;
  std::optional<files::FolderLock> lock_;  ///< of the results folder: one watcher at a time
  /// Checkpoints that are done, by number, with the time when their index was written.
  std::map<int64_t, std::filesystem::file_time_type> seen_;
  int64_t num_evaluated_ = 0, num_damaged_ = 0;
};

std::string newest_save(const EvaluatorJob& job) {
  const auto newest =
      checkpoint::latest_checkpoint(job.saves_folder(), job.config().checkpoint.prefix);
  if (newest && !checkpoint::quick_check(*newest)) return *newest;
  throw Error(ExitCode::kInputMissing, "eval",
              fmt::format("{} contains no complete checkpoint with the prefix {}: train first, or "
                          "name a checkpoint with --restore",
                          job.saves_folder().string(), job.config().checkpoint.prefix));
}

/// Returns the checkpoint that the command line names.
std::string save_of(const std::string& restore, const EvaluatorJob& job) {
  return restore == "latest" ? newest_save(job) : checkpoint::save_at(restore);
}

daemon::CommandResult evaluate_one(const EvalCommandOptions& options,
                                   const daemon::Signals& signals, EvaluatorJob* job) {
  const std::string prefix = save_of(options.restore, *job);
  try {
    const auto line = job->evaluate(prefix, [&signals] { require_going_on(signals); });
    if (line) return {*line + "\n", 0};
  } catch (const Stopped&) {
    return {prefix + ": stopped on request before its end; run again\n",
            static_cast<int>(ExitCode::kStopped)};
  }
  throw Error(ExitCode::kInputMissing, "eval",
              prefix + ": was removed or replaced while it was read: run again");
}

using Json = nlohmann::ordered_json;

std::string json_of(const EvaluatorJob::Sensitivity& found, const std::vector<double>& levels,
                    const std::string& prefix) {
  Json weights = Json::array();
  for (const EvaluatorJob::PrunedAlone& one : found.weights)
    weights.push_back({{"name", one.name},
                       {"num_weights", one.num_weights},
                       {"sparsity", one.sparsity},
                       {"losses", one.losses}});
  const Json all{{"checkpoint", prefix},
                 {"global_step", found.step},
                 {"loss", found.loss},
                 {"levels", levels},
                 {"weights", weights}};
  return json_text(all, 2) + "\n";
}

std::string table_of(const EvaluatorJob::Sensitivity& found, const std::vector<double>& levels) {
  size_t width = 6;
  for (const EvaluatorJob::PrunedAlone& one : found.weights)
    width = std::max(width, one.name.size());
  std::string text = fmt::format(
      "step {}: loss {:.4f}; loss if one weight alone is pruned by magnitude, without training:\n"
      "{:<{}} {:>9} {:>8}",
      found.step, found.loss, "weight", width, "elements", "zeros");
  for (const double level : levels) text += fmt::format(" {:>8.4g}", level);
  for (const EvaluatorJob::PrunedAlone& one : found.weights) {
    text += fmt::format("\n{:<{}} {:>9} {:>8.4f}", one.name, width, one.num_weights, one.sparsity);
    for (const double loss : one.losses) text += fmt::format(" {:>8.4f}", loss);
  }
  return text + "\n";
}

/// Returns a chart of the loss over sparsity, a curve for each weight.
std::string svg_of(const EvaluatorJob::Sensitivity& found, const std::vector<double>& levels) {
  constexpr std::array kColors = {"#1f6fb2", "#c4451c", "#2e8b57", "#8a4fbf",
                                  "#b8860b", "#d1478c", "#4a7c8c", "#6b6b6b"};
  chart::Panel panel{.heading = "Loss with one weight pruned", .prefers_log = true};
  for (const EvaluatorJob::PrunedAlone& one : found.weights) {
    chart::Curve curve{.label = one.name,
                       .color = kColors.at(panel.curves.size() % kColors.size())};
    curve.points.push_back({one.sparsity, found.loss});
    for (size_t i = 0; i < levels.size(); ++i)
      if (levels[i] > one.sparsity) curve.points.push_back({levels[i], one.losses[i]});
    curve.marks = curve.points;
    panel.curves.push_back(std::move(curve));
  }
  return chart::svg_chart({.title = fmt::format("Sensitivity at step {}", found.step),
                           .subtitle = "each weight alone, by magnitude, without training",
                           .x_label = "sparsity",
                           .x_end = 1,
                           .panels = {std::move(panel)}});
}

}  // namespace

daemon::CommandResult sensitivity_command(const SensitivityOptions& options) {
  require_one_process("sensitivity", "it is one process");
  const daemon::Signals signals;
  EvaluatorJob job(options.eval);
  const std::string prefix = save_of(options.eval.restore, job);
  std::vector<double> levels = options.levels;
  std::sort(levels.begin(), levels.end());
  try {
    const EvaluatorJob::Sensitivity found =
        job.sensitivity(prefix, levels, [&signals] { require_going_on(signals); });
    if (!options.json_file.empty())
      files::write_atomically(options.json_file, json_of(found, levels, prefix));
    if (!options.svg_file.empty()) files::write_atomically(options.svg_file, svg_of(found, levels));
    return {table_of(found, levels), 0};
  } catch (const Stopped&) {
    return {prefix + ": stopped on request before its end; run again\n",
            static_cast<int>(ExitCode::kStopped)};
  }
}

daemon::CommandResult eval_command(const EvalCommandOptions& options) {
  require_one_process("eval",
                      "an evaluation of checkpoints is one process, and each would write the same "
                      "results");
  if (options.watch && options.restore != "latest")
    throw Error(
        ExitCode::kUsage, "eval",
        "--watch evaluates every checkpoint of the run, --restore names one: remove one of them");
  if (options.restore != "latest")
    (void)checkpoint::require_save(checkpoint::save_at(options.restore));
  const daemon::Signals signals;
  EvaluatorJob job(options);
  return options.watch ? Watch(signals, &job).until_the_run_ends()
                       : evaluate_one(options, signals, &job);
}

}  // namespace lockstep::cli
