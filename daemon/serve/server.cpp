#include "daemon/serve/server.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/files/lock_holder.h"
#include "base/files/project.h"
#include "base/log.h"
#include "checkpoint/files/save_files.h"
#include "daemon/serve/failed_job.h"
#include "daemon/serve/server_page.h"
#include "daemon/serve/submit_desk.h"
#include "daemon/watch/failure.h"
#include "dist/agree.h"

namespace lockstep::daemon {
namespace {

constexpr std::chrono::milliseconds kIdleTurn{20};  ///< each looks into three folders
constexpr std::chrono::milliseconds kShortTurn{2};  ///< while a job is checked that may be the next

/// Names the newest save of a run's folder, told apart from one that replaced it; empty: none.
std::string newest_save(const std::string& project_dir) {
  const auto saves = checkpoint::find_saves(Project(project_dir).checkpoints());
  if (saves.empty()) return "";
  std::error_code ignored;
  const auto written =
      std::filesystem::last_write_time(checkpoint::index_path(saves.back().prefix), ignored);
  return fmt::format("{} {}", saves.back().prefix, written.time_since_epoch().count());
}

class Server {
 public:
  Server(const ServeOptions& options, const ServerParts& parts)
      : options_(options), parts_(parts), is_root_(parts.process.rank == 0), queue_(options.queue) {
    (void)dist::on_all_ranks(parts.control, [&] {
      if (is_root_) open();
      return true;
    });
    configure_log();
    if (is_root_)
      log::info("serve", fmt::format("{} rank(s) wait for jobs in {}", parts.process.world_size,
                                     queue_.root().string()));
  }
  ~Server() {
    if (!is_root_) return;
    std::error_code ignored;
    std::filesystem::remove(queue_.server_file(), ignored);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  ExitCode run() {
    while (true) {
      const bool is_checking = is_root_ && look_at_desk();
      at::Tensor wishes_3 = at::zeros({3}, at::kLong);
      wishes_3[0] = is_told_to_stop() ? 1 : 0;
      wishes_3[1] = is_checking ? 1 : 0;
      wishes_3[2] = is_root_ && !is_checking && has_jobs() ? 1 : 0;
      parts_.control.all_reduce(wishes_3, dist::ReduceOp::kMax)->wait();
      if (wishes_3[0].item<int64_t>() > 0) return stopped();
      if (wishes_3[1].item<int64_t>() > 0) {
        std::this_thread::sleep_for(kShortTurn);
      } else if (wishes_3[2].item<int64_t>() > 0) {
        const std::optional<Job> job = next_job();
        const std::optional<ExitCode> end = job ? run_job(*job) : std::nullopt;
        if (end) return *end;
      } else if (options_.until_empty) {
        return ExitCode::kDone;
      } else {
        std::this_thread::sleep_for(kIdleTurn);
      }
    }
  }

 private:
  void open() {
    queue_.make();
    take_queue();
    desk_.emplace(queue_, parts_.check);
    page_.emplace(queue_, parts_.process.world_size);
    page_->listen(options_.listen, options_.token_file);
    const nlohmann::json facts{{"host", parts_.process.node},
                               {"pid", ::getpid()},
                               {"ranks", parts_.process.world_size},
                               {"since", files::utc_now()},
                               {"page", page_->origin()},
                               {"max_queued", options_.max_queued}};
    files::write_atomically(queue_.server_file(), facts.dump(1) + "\n");
  }

  /// Whether a job is being checked: none is run meanwhile.
  bool look_at_desk() {
    desk_->look();
    return desk_->is_busy();
  }

  void take_queue() {
    try {
      lock_.emplace(queue_.root());
    } catch (const Error& fault) {
      throw Error(fault.code(), "serve",
                  fmt::format("a queue has one server at a time: {}", fault.what()));
    }
  }

  /// As it is between jobs.
  void configure_log() const {
    log::copy_to("");
    log::configure({.rank = parts_.process.rank,
                    .world_size = parts_.process.world_size,
                    .file = is_root_ ? (queue_.root() / "server.log").string() : ""});
  }

  bool is_told_to_stop() const { return parts_.signals.stop_asked() || parts_.signals.end_asked(); }

  bool has_jobs() const {
    return !queue_.numbers_in("running").empty() || !queue_.numbers_in("queued").empty();
  }

  ExitCode stopped() const {
    if (is_root_) log::info("serve", "told to stop: what waits, waits for the next server");
    return ExitCode::kStopped;
  }

  /// The same on all ranks; nothing if there is none after all: it was cancelled, set aside, or has
  /// had its tries.
  std::optional<Job> next_job() {
    std::optional<Job> job;
    const std::string text = dist::broadcast_text(
        parts_.control, dist::on_all_ranks(parts_.control, [&] {
          if (is_root_) job = take();
          return job ? fmt::format("{}\n{}", job->id, text_of(job->spec)) : std::string();
        }));
    if (text.empty()) return std::nullopt;
    const size_t mark = text.find('\n');
    return Job{std::stoll(text.substr(0, mark)), parse_job("the job", text.substr(mark + 1))};
  }

  /// Rank 0.
  std::optional<Job> take() {
    std::optional<Job> job = queue_.take();
    if (!job) return std::nullopt;
    JobSpec& spec = job->spec;
    if (const std::optional<Failure> told = told_by_last_try(queue_, *job)) {
      fail(*job, *told, told->message);
      return std::nullopt;
    }
    if (std::string save = newest_save(spec.project_dir); save != spec.last_save) {
      spec.tries = 0;
      spec.last_save = std::move(save);
    }
    if (spec.tries >= options_.max_tries) {
      give_up(*job);
      return std::nullopt;
    }
    ++spec.tries;
    files::make_folders(queue_.folder(job->id));
    queue_.note(*job);
    return job;
  }

  /// What rank 0 knows of a job with which the server ended each time.
  void give_up(const Job& job) {
    const Failure unknown{.rank = -1,
                          .node = parts_.process.node,
                          .exit_code = static_cast<int>(ExitCode::kUnavailable),
                          .message = "the ranks were lost",
                          .unix_time_s = 1e300};
    const Failure cause = cause_of(Project(job.spec.project_dir).logs(), unknown).value_or(unknown);
    const std::string message =
        fmt::format("the server ended {} time(s) in a row while it ran, without a new save: {}",
                    job.spec.tries, cause.message);
    fail(job, cause, message);
  }

  void fail(const Job& job, const Failure& cause, const std::string& message) {
    log::error("serve", fmt::format("job {} has failed: {}", job.id, message));
    end(job, {.state = JobState::kFailed, .exit_code = cause.exit_code, .message = message});
  }

  /// What the server ends with, if it must.
  std::optional<ExitCode> run_job(const Job& job) {
    const std::string began = files::utc_now();
    if (is_root_) page_->begin(job);
    const JobOutcome outcome =
        serve_job(job, parts_, is_root_ ? queue_.folder(job.id) : std::filesystem::path());
    configure_log();
    if (outcome.leaves_ranks_unclear()) {  // nobody can be asked any more
      if (is_root_) conclude(job, outcome, began);
      return outcome.code;
    }
    (void)dist::on_all_ranks(parts_.control, [&] {
      if (is_root_) conclude(job, outcome, began);
      return true;
    });
    return outcome.is_signalled ? std::optional(stopped()) : std::nullopt;
  }

  /// Rank 0: where the job is from now on.
  void conclude(const Job& job, const JobOutcome& outcome, const std::string& began) {
    JobResult result{.exit_code = static_cast<int>(outcome.code),
                     .message = outcome.message,
                     .tries = job.spec.tries,
                     .began = began};
    switch (outcome.code) {
      case ExitCode::kDone:
        return end(job, result);
      case ExitCode::kStopped:
        if (outcome.is_cancelled) {
          result.state = JobState::kCancelled;
          result.message = "cancelled while it ran";
        } else if (outcome.is_signalled) {
          return put_back(job);
        } else {
          result.state = JobState::kStopped;
          result.message = "stopped as asked (lockstep ctl)";
        }
        return end(job, result);
      case ExitCode::kUnavailable:
      case ExitCode::kWatchdog:
        return log::warning("serve", fmt::format("job {} has lost ranks, and the server ends with "
                                                 "{}: the next one goes on with it",
                                                 job.id, result.exit_code));
      default:
        result.state = JobState::kFailed;
        return end(job, result);
    }
  }

  void put_back(Job job) {
    --job.spec.tries;
    queue_.put_back(job);
    page_->end(JobState::kQueued);
    log::info("serve", fmt::format("job {} has saved and waits for the next server", job.id));
  }

  void end(const Job& job, JobResult result) {
    result.tries = job.spec.tries;
    result.ended = files::utc_now();
    queue_.end(job, result);
    page_->end(result.state);
    log::info("serve", fmt::format("job {} has ended: {} ({})", job.id,
                                   job_state_name(result.state), result.exit_code));
  }

  const ServeOptions& options_;
  const ServerParts& parts_;
  const bool is_root_;
  const JobQueue queue_;
  std::optional<files::FolderLock> lock_;  ///< rank 0, as what follows
  std::optional<ServerPage> page_;
  std::optional<SubmitDesk> desk_;
};

}  // namespace

ExitCode serve(const ServeOptions& options, const ServerParts& parts) {
  return Server(options, parts).run();
}

}  // namespace lockstep::daemon
