#include "daemon/tool/queue_commands.h"

#include <CLI/CLI.hpp>

#include "daemon/number_range.h"
#include "daemon/serve/submit_desk.h"
#include "daemon/server_options.h"
#include "daemon/tool/launch_commands.h"

namespace lockstep::daemon {
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
      ->check(number(0, 1e9))
      ->capture_default_str();
}

void QueueCommands::add_serve(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "serve", "stay up and run the jobs of a queue; start the ranks again where they are lost");
  add_server_options(sub, &serve_.server);
  add_ranks_options(sub, &serve_);
  sub->callback([this] { command_ = [this] { return serve_command(serve_); }; });
}

void QueueCommands::add_submit(CLI::App* app) {
  CLI::App* sub = app->add_subcommand(
      "submit", "check a run file and put it into a queue of jobs; prints the job's number");
  sub->add_option("FILE", submit_.config_file, "the run file")->required();
  add_queue_option(sub, &submit_.queue, "folder of the jobs; made if it is not there");
  sub->add_option("--set", submit_.sets,
                  "override one key: path=value. run.project_dir is the job's folder otherwise");
  sub->add_option("--estimator", submit_.estimator,
                  "a plug-in that brings what is trained; its own flags stand behind --");
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
  CLI::App* sub = app->add_subcommand("ps", "the jobs of a queue");
  add_queue_option(sub, &list_.queue, "folder of the jobs");
  sub->add_flag("--all", list_.all, "also those that ended before the newest 20");
  sub->add_flag("--json", list_.json, "for programs");
  sub->callback([this] { command_ = [this] { return list_command(list_); }; });
}

CLI::App* QueueCommands::add_of_job(CLI::App* app, const char* name, const char* help, OfJob call) {
  CLI::App* sub = app->add_subcommand(name, help);
  sub->add_option("ID", of_job_.id, "the number that lockstep submit has printed")
      ->required()
      ->check(positive_number());
  add_queue_option(sub, &of_job_.queue, "folder of the jobs");
  sub->callback([this, call] { command_ = [this, call] { return call(of_job_); }; });
  return sub;
}

}  // namespace lockstep::daemon
