#include <filesystem>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/files/files.h"
#include "base/files/project.h"
#include "checkpoint/format/checkpoint_files.h"
#include "cli/command_line.h"
#include "daemon/config/number_range.h"
#include "job_server/failed_job.h"
#include "job_server/serve_options.h"
#include "job_server/submit_desk.h"

// `lockstep serve`, and the commands of users on a queue of jobs.
namespace lockstep::daemon {
namespace {

/// Returns the command line of each rank.
std::vector<std::string> rank_command(const ServeOptions& server, const std::string& program) {
  std::vector<std::string> words{program,        "serve",
                                 "--queue",      server.queue,
                                 "--listen",     server.listen,
                                 "--max-queued", std::to_string(server.max_queued),
                                 "--max-tries",  std::to_string(server.max_tries)};
  if (!server.token_file.empty()) words.insert(words.end(), {"--token-file", server.token_file});
  if (server.until_empty) words.emplace_back("--until-empty");
  return words;
}

/// Returns a value that changes when a job ends or the running job has a new checkpoint.
launch::SaveFound progress_of(const JobQueue& queue) {
  launch::SaveFound found;
  int64_t num_ended = 0;
  for (const int64_t id : queue.numbers_in("jobs")) num_ended += queue.has_ended(id) ? 1 : 0;
  found.prefix = fmt::format("the queue, where {} job(s) have ended", num_ended);
  for (const int64_t id : queue.numbers_in("running")) {
    const std::optional<JobSpec> spec = queue.spec(id);
    if (!spec) continue;
    const auto newest = checkpoint::newest_commit(Project(spec->project_dir).checkpoints());
    if (!newest.prefix.empty()) found.written = newest.written;
  }
  return found;
}

constexpr int64_t kMaxServerTokenBytes = 4096;

/// Throws Error for options that rank 0 would refuse, before ranks are started.
void require_usable(const ServeCommandOptions& options) {
  (void)address_of(options.server.listen);
  if (runs_here(options) && !options.server.token_file.empty())
    (void)files::read(options.server.token_file, kMaxServerTokenBytes);
}

}  // namespace

CommandResult serve_command(const ServeCommandOptions& options) {
  const std::string program = rank_program(options);
  require_usable(options);
  ServeOptions server = options.server;
  const JobQueue queue(server.queue);
  queue.make();  // before the supervisor creates its own folder in it
  server.queue = queue.root().string();
  FailedJob failed(queue);
  return {"",
          supervise_ranks(
              options, queue.root(), [&](bool) { return rank_command(server, program); },
              [queue] { return progress_of(queue); }, [&](int code) { return failed.note(code); })};
}

void QueueCommands::add_to(CLI::App* app) {
  add_serve(app);
  add_submit(app);
  add_ps(app);
  add_of_job(app, "logs", "show rank 0's log of a job", logs_command)
      ->add_flag("-f,--follow", of_job_.follow, "continue until the job has ended");
  add_of_job(app, "cancel", "cancel a job: a queued one at once; a running one saves and stops",
             cancel_command);
  add_of_job(app, "wait", "wait for a job's end; return its exit code", wait_command)
      ->add_option("--timeout", of_job_.timeout_s, "seconds; 0: without a limit")
      ->check(number(0, 1e9))
      ->capture_default_str();
}

void QueueCommands::add_serve(CLI::App* app) {
  CLI::App* sub = app->add_subcommand("serve", "run the jobs of a queue; restart lost ranks");
  add_server_options(sub, &serve_.server);
  add_ranks_options(sub, &serve_);
  sub->callback([this] { command_ = [this] { return serve_command(serve_); }; });
}

void QueueCommands::add_submit(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "submit", "check a run file and queue it as a job; print the job's number");
  sub->add_option("FILE", submit_.config_file, "the run file")->required();
  add_queue_option(sub, &submit_.queue, "folder of the jobs; created if missing");
  sub->add_option("--set", submit_.sets,
                  "override one key: path=value. run.project_dir is the job's folder otherwise");
  sub->add_option("--estimator", submit_.estimator,
                  "plug-in with an estimator; its own flags go after --");
  sub->callback([this] {
    takes_flags_ = true;
    command_ = [this] {
      submit_.flags = flags_;
      // Only before LibTorch is loaded: afterwards a check here takes no longer than at the desk.
      const bool is_light = tensors_.submit == TensorCommands{}.submit;
      const std::optional<CommandResult> told = is_light ? submit_at_desk(submit_) : std::nullopt;
      return told ? *told : tensors_.submit(submit_);
    };
  });
}

void QueueCommands::add_ps(CLI::App* app) {
  CLI::App* sub = app->add_subcommand("ps", "list the jobs of a queue");
  add_queue_option(sub, &list_.queue, "folder of the jobs");
  sub->add_flag("--all", list_.all, "also jobs that ended before the newest 20");
  sub->add_flag("--json", list_.json, "print JSON");
  sub->callback([this] { command_ = [this] { return list_command(list_); }; });
}

CLI::App* QueueCommands::add_of_job(CLI::App* app, const char* name, const char* help, OfJob call) {
  CLI::App* sub = app->add_subcommand(name, help);
  sub->add_option("ID", of_job_.id, "job number printed by lockstep submit")
      ->required()
      ->check(positive_number());
  add_queue_option(sub, &of_job_.queue, "folder of the jobs");
  sub->callback([this, call] { command_ = [this, call] { return call(of_job_); }; });
  return sub;
}

}  // namespace lockstep::daemon
