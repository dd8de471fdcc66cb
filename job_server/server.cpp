#include "job_server/server.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/exit_class.h"
#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/files/project.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "checkpoint/format/checkpoint_files.h"
#include "daemon/control/failure.h"
#include "daemon/control/watchdog.h"
#include "job_server/failed_job.h"
#include "job_server/submit_desk.h"
#include "metrics/http/http_server.h"
#include "metrics/service_metrics.h"

// Page and loop of a server of jobs.
namespace lockstep::job_server {

// The server's page must answer even if the queue's disk hangs: its numbers are kept in memory, and
// the listing runs in the background.
namespace {

/// Longest wait for a listing of the queue; after that the page shows the previous numbers.
constexpr std::chrono::milliseconds kListing{200};

/// Monitoring page of a server: /metrics and /livez, during jobs and between them. Each job also
/// has its own pages (metrics.listen of its run file). Any thread.
class ServerPage {
 public:
  /// Counts the jobs of the queue that have ended.
  ServerPage(const JobQueue& queue, int num_ranks)
      : num_ranks_(num_ranks), waiting_("queue", [queue] {
          const auto count = [&](const char* place) {
            return static_cast<int64_t>(queue.numbers_in(place).size());
          };
          return Waiting{.queued = count("queued"), .set_aside = count("set_aside")};
        }) {
    for (const int64_t id : queue.numbers_in("jobs")) {
      try {
        if (const std::optional<JobResult> result = queue.result(id))
          ++num_ended_.at(static_cast<size_t>(result->state));
      } catch (const Error& fault) {  // a damaged file of a job that ended earlier
        log::warning("serve", fault.what());
      }
    }
  }

  /// Starts the page; "off": none. Throws Error as metrics::HttpServer does.
  void listen(const std::string& listen, const std::string& token_file) {
    const std::optional<metrics::ListenAddress> address = address_of(listen);
    if (!address) return;
    server_.emplace(
        metrics::HttpOptions{.listen = *address,
                             .access = {.web_config = "", .token_file = token_file},
                             .fall_back_to_any_port = true},
        [this](std::string_view target) { return answer(target); }, nullptr);
    log::info("serve", fmt::format("{}/metrics", server_->origin()));
  }
  /// Returns "http://127.0.0.1:9463"; empty if no page is served.
  std::string origin() const { return server_ ? server_->origin() : ""; }

  void begin(const Job& job) {
    const std::lock_guard lock(mutex_);
    ++num_starts_;
    running_ = job;
  }
  void end(JobState state) {
    const std::lock_guard lock(mutex_);
    if (state != JobState::kQueued) ++num_ended_.at(static_cast<size_t>(state));
    running_.reset();
  }
  /// Sets whether jobs wait for a repair of the host.
  void set_held(bool is_held) {
    const std::lock_guard lock(mutex_);
    is_held_ = is_held;
  }

 private:
  metrics::HttpResponse answer(std::string_view target) const {
    const std::string_view route = target.substr(0, target.find('?'));
    if (route == "/livez") return {.body = "ok\n", .route = "/livez"};
    if (route == "/metrics")
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = page(),
              .route = "/metrics"};
    return {.status = 404, .body = "/metrics or /livez\n"};
  }

  std::string page() const {
    metrics::ServerSample sample{.num_ranks = num_ranks_};
    const auto count = [&](JobState state, int64_t number) {
      sample.num_jobs.emplace_back(job_state_name(state), number);
    };
    // Before the lock: the listing may wait for the disk.
    const Waiting waiting = waiting_.get(kListing).value.value_or(Waiting{});
    const std::lock_guard lock(mutex_);
    count(JobState::kQueued, waiting.queued);
    count(JobState::kRunning, running_ ? 1 : 0);
    for (const JobState ended :
         {JobState::kDone, JobState::kStopped, JobState::kCancelled, JobState::kFailed})
      count(ended, num_ended_.at(static_cast<size_t>(ended)));
    count(JobState::kSetAside, waiting.set_aside);
    sample.num_starts = num_starts_;
    sample.is_held = is_held_;
    if (running_) sample.running = {std::to_string(running_->id), running_->spec.run_name};
    return metrics::server_page(sample);
  }

  const int num_ranks_;
  mutable std::mutex mutex_;
  std::array<int64_t, kNumJobStates> num_ended_{};  // guarded by mutex_, as the next three
  int64_t num_starts_ = 0;
  bool is_held_ = false;
  std::optional<Job> running_;
  struct Waiting {
    int64_t queued = 0, set_aside = 0;
  };
  /// Listed by a separate thread: a hanging disk must not block the page.
  mutable BackgroundValue<Waiting> waiting_;
  std::optional<metrics::HttpServer> server_;  // declared last: its thread reads the other members
};

// The server's loop. Rank 0 alone touches the queue; in each turn the ranks agree by one all-reduce
// what happens next. Between jobs no rank waits anywhere else, so a signal to any rank is noticed.

constexpr int64_t kMaxSummaryBytes = 1 << 20;
constexpr double kDiskPatience_s = 5;               ///< seconds after a stop request
constexpr std::chrono::milliseconds kIdleTurn{20};  ///< each turn reads three folders
/// Turn while a job is checked that may be the next one.
constexpr std::chrono::milliseconds kShortTurn{2};

/// Returns a text that identifies the newest checkpoint of a run's folder and its commit; empty if
/// there is none.
std::string newest_save(const std::string& project_dir) {
  const auto newest = checkpoint::newest_commit(Project(project_dir).checkpoints());
  return newest.prefix.empty() ? "" : fmt::format("{} {}", newest.prefix, newest.written);
}

/// Explains a run that ended without an error but incomplete; the log says more.
std::string end_told_by_summary(const std::string& project_dir) {
  try {
    const auto summary = nlohmann::json::parse(
        files::read(Project(project_dir).summary(), kMaxSummaryBytes), nullptr, false);
    return fmt::format("the run ended as '{}': see its log",
                       summary.is_object() ? summary.value("exit_reason", "") : "");
  } catch (const std::exception&) {
    return "the run left no summary: see its log";
  }
}

/// Server on one rank. Only rank 0 uses the queue and has the page and the desk.
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
  // Clients take a missing server.json for a queue without a server.
  ~Server() {
    if (!is_root_) return;
    std::error_code ignored;
    std::filesystem::remove(queue_.server_file(), ignored);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  ExitCode run() {
    while (true) {
      // The disk is accessed before the collective, so other ranks only wait for its result.
      const bool has_next = is_root_ && look();
      // The maximum of each element over the ranks decides; only rank 0 sets the last three.
      at::Tensor wishes_4 = at::zeros({4}, at::kLong);
      wishes_4[0] = is_asked_to_stop() ? 1 : 0;
      wishes_4[1] = has_next ? 1 : 0;
      wishes_4[2] = is_root_ && desk_->is_busy() ? 1 : 0;
      wishes_4[3] = static_cast<int64_t>(fault_of_host_);
      parts_.control.all_reduce(wishes_4, dist::ReduceOp::kMax)->wait();
      if (wishes_4[0].item<int64_t>() > 0) return stopped();
      if (wishes_4[1].item<int64_t>() > 0) {
        const std::optional<Job> job = next_job();
        const std::optional<ExitCode> end = job ? run_job(*job) : std::nullopt;
        if (end) return *end;
      } else if (wishes_4[2].item<int64_t>() > 0) {
        std::this_thread::sleep_for(kShortTurn);
      } else if (options_.until_empty) {
        return static_cast<ExitCode>(wishes_4[3].item<int64_t>());
      } else {
        std::this_thread::sleep_for(kIdleTurn);
      }
    }
  }

 private:
  void open() {
    // The folders must exist before they can be locked.
    queue_.make();
    take_queue();
    page_.emplace(queue_, parts_.process.world_size);
    page_->listen(options_.listen, options_.token_file);
    tell("");
    desk_.emplace(queue_, parts_.check);  // last: clients take its folder for a running server
  }

  /// Writes server.json. `held`: why no job begins; empty if jobs may begin.
  void tell(const std::string& held) const {
    nlohmann::json facts{{"host", parts_.process.node},
                         {"pid", ::getpid()},
                         {"ranks", parts_.process.world_size},
                         {"since", since_},
                         {"page", page_->origin()},
                         {"max_queued", options_.max_queued}};
    if (!held.empty()) facts["held"] = held;
    files::write_atomically(queue_.server_file(), json_text(facts, 1) + "\n");
  }

  void take_queue() {
    try {
      lock_.emplace(queue_.root());
    } catch (const Error& fault) {
      throw Error(fault.code(), "serve",
                  fmt::format("a queue has one server at a time: {}", fault.what()));
    }
  }

  /// Sets the log as it is between jobs.
  void configure_log() const {
    log::copy_to("");
    log::configure({.rank = parts_.process.rank,
                    .world_size = parts_.process.world_size,
                    .file = is_root_ ? (queue_.root() / "server.log").string() : ""});
  }

  bool is_asked_to_stop() const {
    return parts_.signals.stop_asked() || parts_.signals.end_asked();
  }

  /// Starts the desk's next check. Returns true if a job may begin. Rank 0 only.
  bool look() {
    const auto disk = disk_.use();
    desk_->look();
    try {
      const std::vector<int64_t> queued = queue_.numbers_in("queued");
      // The job that waited for the host was cancelled.
      if (queued.empty() && std::exchange(fault_of_host_, ExitCode::kDone) != ExitCode::kDone)
        show_hold("");
      return !queue_.numbers_in("running").empty() ||
             std::any_of(queued.begin(), queued.end(), [&](int64_t id) { return may_begin(id); });
    } catch (const Error& fault) {  // the folder may be readable in the next turn
      if (!std::exchange(said_unreadable_, true)) log::warning("serve", fault.what());
      return false;
    }
  }

  bool may_begin(int64_t id) const { return faults_.may_begin(id, HostFaults::Clock::now()); }

  ExitCode stopped() const {
    if (is_root_)
      log::info("serve", "stop requested: waiting jobs stay queued for the next server");
    return ExitCode::kStopped;
  }

  /// Returns the next job, the same on all ranks. nullopt if there is none after all: it was
  /// cancelled, set aside, or has used up its tries.
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

  /// Takes the next job from the queue. Rank 0 only.
  std::optional<Job> take() {
    const auto disk = disk_.use();
    std::optional<Job> job = queue_.take([this](int64_t id) { return may_begin(id); });
    if (!job) return std::nullopt;
    said_unreadable_ = false;
    JobSpec& spec = job->spec;
    // The failure of the last try decides whether another one is worthwhile.
    const std::optional<daemon::Failure> told = told_by_last_try(queue_, *job);
    if (told && exit_class(told->exit_code) == ExitClass::kJob) {
      fail(*job, *told, told->message);
      return std::nullopt;
    }
    if (told && spec.tries > 0) --spec.tries;  // the host's fault is not a try
    // A new checkpoint is progress, so the tries start again.
    if (std::string save = newest_save(spec.project_dir); save != spec.last_save) {
      spec.tries = 0;
      spec.last_save = std::move(save);
    }
    if (spec.tries >= options_.max_tries) {
      give_up(*job);
      return std::nullopt;
    }
    // Written before the job runs: a killed server must not lose the count.
    ++spec.tries;
    files::make_folders(queue_.folder(job->id));
    queue_.note(*job);
    return job;
  }

  /// Fails a job with which the server ended each time, with the cause that a rank has written.
  void give_up(const Job& job) {
    const daemon::Failure unknown{.rank = -1,
                                  .node = parts_.process.node,
                                  .exit_code = static_cast<int>(ExitCode::kUnavailable),
                                  .message = "the ranks were lost",
                                  .unix_time_s = 1e300};
    const daemon::Failure cause =
        daemon::cause_of(Project(job.spec.project_dir).logs(), unknown).value_or(unknown);
    const std::string message = fmt::format(
        "the server ended {} time(s) in a row while it ran, without a new checkpoint: {}",
        job.spec.tries, cause.message);
    fail(job, cause, message);
  }

  void fail(const Job& job, const daemon::Failure& cause, const std::string& message) {
    log::error("serve", fmt::format("job {} has failed: {}", job.id, message));
    end(job, {.state = JobState::kFailed, .exit_code = cause.exit_code, .message = message});
  }

  /// Runs a job. Returns the server's exit code if the server must end.
  std::optional<ExitCode> run_job(const Job& job) {
    const std::string began = files::utc_now();
    if (is_root_) page_->begin(job);
    const JobOutcome outcome =
        serve_job(job, parts_, is_root_ ? queue_.folder(job.id) : std::filesystem::path());
    configure_log();
    if (outcome.leaves_ranks_unclear()) {  // no collective is possible any more
      if (is_root_) conclude(job, outcome, began);
      return outcome.code;
    }
    (void)dist::on_all_ranks(parts_.control, [&] {
      if (is_root_) conclude(job, outcome, began);
      return true;
    });
    return outcome.is_signalled ? std::optional(stopped()) : std::nullopt;
  }

  /// Moves the job to its next place. Rank 0 only.
  void conclude(const Job& job, const JobOutcome& outcome, const std::string& began) {
    const auto disk = disk_.use();
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
          // The job has saved because of the signal to the server, not by its own fault.
          put_back(job, /*is_a_try=*/false);
          return log::info("serve",
                           fmt::format("job {} has saved and waits for the next server", job.id));
        } else {
          result.state = JobState::kStopped;
          result.message = "stopped on request (lockstep ctl)";
        }
        return end(job, result);
      case ExitCode::kUnavailable:
      case ExitCode::kDisagree:
      case ExitCode::kWatchdog:
        return log::warning("serve",
                            fmt::format("job {} left its ranks in an undefined state, so the "
                                        "server ends with {}: the next server continues the job",
                                        job.id, result.exit_code));
      default:
        if (result.message.empty()) result.message = end_told_by_summary(job.spec.project_dir);
        if (is_of_host(outcome.code, result.message, job.spec)) return hold(job, result);
        result.state = JobState::kFailed;
        return end(job, result);
    }
  }

  /// Puts a job back after a fault of the host. It keeps its place. If other jobs run well
  /// meanwhile, each start counts as a try.
  void hold(const Job& job, JobResult result) {
    const auto now = HostFaults::Clock::now();
    const bool counts = faults_.note_fault(job.id, now);
    if (counts && job.spec.tries >= options_.max_tries) {
      result.state = JobState::kFailed;
      return end(job, result);
    }
    put_back(job, /*is_a_try=*/counts);
    fault_of_host_ = static_cast<ExitCode>(result.exit_code);
    log::error("serve",
               fmt::format("job {} stopped on a fault of this host ({}) and keeps its place in the "
                           "queue; jobs start again when the fault is fixed: {}",
                           job.id, result.exit_code, result.message));
    show_hold(result.message);
  }

  /// Writes or removes the reason why jobs wait. The full disk may be the queue's own, so errors
  /// are only logged.
  void show_hold(const std::string& why) {
    page_->set_held(!why.empty());
    try {
      tell(why);
    } catch (const Error& fault) {
      log::warning("serve", fault.what());
    }
  }

  void put_back(Job job, bool is_a_try) {
    // take() counts every start; undo that.
    if (!is_a_try) --job.spec.tries;
    queue_.put_back(job);
    page_->end(JobState::kQueued);
  }

  void end(const Job& job, JobResult result) {
    result.tries = job.spec.tries;
    result.ended = files::utc_now();
    queue_.end(job, result);
    page_->end(result.state);
    faults_.note_end(job.id);
    // A job has ended, so the host works again.
    if (std::exchange(fault_of_host_, ExitCode::kDone) != ExitCode::kDone) show_hold("");
    log::info("serve", fmt::format("job {} has ended: {} ({})", job.id,
                                   job_state_name(result.state), result.exit_code));
  }

  const ServeOptions& options_;
  const ServerParts& parts_;
  const bool is_root_;
  const JobQueue queue_;
  daemon::DiskLimit disk_{parts_.signals, kDiskPatience_s, parts_.abort};
  std::optional<files::FolderLock> lock_;  ///< rank 0 only, as the next three
  std::optional<ServerPage> page_;
  std::optional<SubmitDesk> desk_;
  const std::string since_ = files::utc_now();
  HostFaults faults_;
  ExitCode fault_of_host_ = ExitCode::kDone;  ///< the last one, until a job has ended
  bool said_unreadable_ = false;
};

}  // namespace

ExitCode serve(const ServeOptions& options, const ServerParts& parts) {
  return Server(options, parts).run();
}

}  // namespace lockstep::job_server
