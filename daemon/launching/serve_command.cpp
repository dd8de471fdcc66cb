#include "daemon/launching/serve_command.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/files/files.h"
#include "base/files/project.h"
#include "checkpoint/files/save_files.h"
#include "daemon/serve/failed_job.h"

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
    const auto saves = checkpoint::find_saves(Project(spec->project_dir).checkpoints());
    if (saves.empty()) continue;
    std::error_code ignored;
    found.written =
        std::filesystem::last_write_time(checkpoint::index_path(saves.back().prefix), ignored)
            .time_since_epoch()
            .count();
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

}  // namespace lockstep::daemon
