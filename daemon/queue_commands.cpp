#include "daemon/queue_commands.h"

#include <CLI/CLI.hpp>

#include "daemon/commands.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/launch_commands.h"

namespace lockstep::daemon {
namespace {

void add_queue(CLI::App* sub, std::string* queue, const char* help) {
  sub->add_option("--queue", *queue, help)->envname("LOCKSTEP_QUEUE")->required();
}

}  // namespace

void add_server_options(CLI::App* sub, ServeOptions* options) {
  add_queue(sub, &options->queue, "folder of the jobs; made if it is not there");
  sub->add_option("--listen", options->listen,
                  "HOST:PORT of the server's own metrics, on rank 0; off: none. A port that is "
                  "taken: any other")
      ->capture_default_str();
  sub->add_option("--token-file", options->token_file,
                  "who asks for them must know it; needed where other hosts reach them");
  sub->add_option("--max-queued", options->max_queued, "so many jobs may wait")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  sub->add_option("--max-tries", options->max_tries,
                  "starts of a job in a row that lost ranks and brought no new save; then it has "
                  "failed")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  sub->add_flag("--until-empty", options->until_empty, "end with 0 where no job waits");
}

void QueueCommands::add_to(CLI::App* app) {
  add_serve(app);
  add_submit(app);
  add_ps(app);
  add_of_job(app, "logs", "what rank 0 has logged of a job", logs_command)
      ->add_flag("-f,--follow", of_job_.follow, "go on until the job has ended");
  add_of_job(app, "cancel", "end a job: one that waits at once; the one that runs saves and stops",
             cancel_command);
  add_of_job(app, "wait", "return when a job has ended, with its exit code", wait_command)
      ->add_option("--timeout", of_job_.timeout_s, "seconds; 0: without a limit")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
}

void QueueCommands::add_serve(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "serve", "stay up and run the jobs of a queue; start the ranks again where they are lost");
  add_server_options(sub, &serve_.server);
  add_ranks_options(sub, &serve_);
  sub->callback([this] { command_ = [this] { return serve_command(serve_); }; });
}

CommandResult QueueCommands::submit() {
  submit_.flags = flags_;
  (void)check_command(submit_.config_file,
                      overrides_of(submit_.sets, submit_.estimator, submit_.flags));
  return submit_command(submit_);
}

void QueueCommands::add_submit(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "submit", "check a run file and put it into a queue of jobs; prints the job's number");
  sub->add_option("FILE", submit_.config_file, "the run file")->required();
  add_queue(sub, &submit_.queue, "folder of the jobs; made if it is not there");
  sub->add_option("--set", submit_.sets,
                  "override one key: path=value. run.project_dir is the job's folder otherwise");
  sub->add_option("--estimator", submit_.estimator,
                  "a plug-in that brings what is trained; its own flags stand behind --");
  sub->callback([this] {
    takes_flags_ = true;
    command_ = [this] { return submit(); };
  });
}

void QueueCommands::add_ps(CLI::App* app) {
  CLI::App* sub = app->add_subcommand("ps", "the jobs of a queue");
  add_queue(sub, &list_.queue, "folder of the jobs");
  sub->add_flag("--all", list_.all, "also those that ended before the newest 20");
  sub->add_flag("--json", list_.json, "for programs");
  sub->callback([this] { command_ = [this] { return list_command(list_); }; });
}

CLI::App* QueueCommands::add_of_job(CLI::App* app, const char* name, const char* help, OfJob call) {
  CLI::App* sub = app->add_subcommand(name, help);
  sub->add_option("ID", of_job_.id, "the number that lockstep submit has printed")
      ->required()
      ->check(CLI::PositiveNumber);
  add_queue(sub, &of_job_.queue, "folder of the jobs");
  sub->callback([this, call] { command_ = [this, call] { return call(of_job_); }; });
  return sub;
}

}  // namespace lockstep::daemon
