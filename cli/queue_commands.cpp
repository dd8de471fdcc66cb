#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/files/files.h"
#include "base/files/project.h"
#include "checkpoint/format/checkpoint_files.h"
#include "cli/command_line.h"
#include "daemon/config/number_range.h"
#include "daemon/run/check.h"
#include "job_server/failed_job.h"
#include "job_server/serve_options.h"
#include "job_server/submit_desk.h"

// `lockstep serve`, and the commands of users on a queue of jobs.
namespace lockstep::cli {
namespace {

/// The command line of `lockstep serve`.
struct ServeCommandOptions : launch::RanksOptions {
  job_server::ServeOptions server;
};

/// Returns the command line of each rank.
std::vector<std::string> rank_command(const job_server::ServeOptions& server,
                                      const std::string& program) {
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
launch::SaveFound progress_of(const job_server::JobQueue& queue) {
  launch::SaveFound found;
  int64_t num_ended = 0;
  for (const int64_t id : queue.numbers_in("jobs")) num_ended += queue.has_ended(id) ? 1 : 0;
  found.prefix = fmt::format("the queue, where {} job(s) have ended", num_ended);
  for (const int64_t id : queue.numbers_in("running")) {
    const std::optional<job_server::JobSpec> spec = queue.spec(id);
    if (!spec) continue;
    const auto newest = checkpoint::newest_commit(Project(spec->project_dir).checkpoints());
    if (!newest.prefix.empty()) found.written = newest.written;
  }
  return found;
}

/// Keeps a server of jobs running: starts its ranks with mpirun, and again after a job has lost
/// ranks (launch/supervisor.h). A job that has ended or has a new checkpoint counts as
/// progress. A job that fails on one rank alone has failed; the ranks restart with the next one.
daemon::CommandResult serve_command(const ServeCommandOptions& options) {
  const std::string program = launch::rank_program(options);
  // Throws for options that rank 0 would refuse, before ranks are started.
  (void)job_server::address_of(options.server.listen);
  if (launch::runs_here(options) && !options.server.token_file.empty())
    (void)files::read(options.server.token_file, /*max_bytes=*/4096);
  job_server::ServeOptions server = options.server;
  const job_server::JobQueue queue(server.queue);
  queue.make();  // before the supervisor creates its own folder in it
  server.queue = queue.root().string();
  job_server::FailedJob failed(queue);
  return {"",
          launch::supervise_ranks(
              options, queue.root(), [&](bool) { return rank_command(server, program); },
              [queue] { return progress_of(queue); }, [&](int code) { return failed.note(code); })};
}

void add_serve(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<ServeCommandOptions>();
  CLI::App* sub = app->add_subcommand("serve", "run the jobs of a queue; restart lost ranks");
  job_server::add_server_options(sub, &asked->server);
  add_ranks_options(sub, asked.get());
  set_command(sub, line, [=] { return serve_command(*asked); });
}

void add_submit(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<job_server::SubmitOptions>();
  CLI::App* sub = app->add_subcommand(
      "submit", "check a run file and queue it as a job; print the job's number");
  sub->add_option("FILE", asked->config_file, "the run file")->required();
  job_server::add_queue_option(sub, &asked->queue, "folder of the jobs; created if missing");
  add_above_file(sub, line, &asked->above,
                 "override one key: path=value. run.project_dir is the job's folder otherwise");
  set_command(sub, line, [=] {
    // Only before LibTorch is loaded: afterwards a check here takes no longer than at the desk.
    const std::optional<daemon::CommandResult> told =
        kHasTensors ? std::nullopt : job_server::submit_at_desk(*asked);
    return told ? *told : with_tensors([&](auto) {
      daemon::check_before_queue(asked->config_file, daemon::overrides_of(asked->above));
      return job_server::submit_command(*asked);
    });
  });
}

void add_ps(CLI::App* app, ParsedLine* line) {
  const auto asked = std::make_shared<job_server::ListOptions>();
  CLI::App* sub = app->add_subcommand("ps", "list the jobs of a queue");
  job_server::add_queue_option(sub, &asked->queue, "folder of the jobs");
  sub->add_flag("--all", asked->all, "also jobs that ended before the newest 20");
  sub->add_flag("--json", asked->json, "print JSON");
  set_command(sub, line, [=] { return job_server::list_command(*asked); });
}

}  // namespace

void add_queue_commands(CLI::App* app, ParsedLine* line) {
  add_serve(app, line);
  add_submit(app, line);
  add_ps(app, line);
  const auto asked = std::make_shared<job_server::JobCommandOptions>();
  const auto add = [&](const char* name, const char* help,
                       daemon::CommandResult (*of_job)(const job_server::JobCommandOptions&)) {
    CLI::App* sub = app->add_subcommand(name, help);
    sub->add_option("ID", asked->id, "job number printed by lockstep submit")
        ->required()
        ->check(daemon::positive_number());
    job_server::add_queue_option(sub, &asked->queue, "folder of the jobs");
    set_command(sub, line, [=] { return of_job(*asked); });
    return sub;
  };
  add("logs", "show rank 0's log of a job", job_server::logs_command)
      ->add_flag("-f,--follow", asked->follow, "continue until the job has ended");
  add("cancel", "cancel a job: a queued one at once; a running one saves and stops",
      job_server::cancel_command);
  add("wait", "wait for a job's end; return its exit code", job_server::wait_command)
      ->add_option("--timeout", asked->timeout_s, "seconds; 0: without a limit")
      ->check(daemon::number(0, 1e9))
      ->capture_default_str();
}

}  // namespace lockstep::cli
