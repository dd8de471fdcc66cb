#include "job_server/queue_client.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"

// These commands work on the queue's files alone, so they need no server.
namespace lockstep::job_server {
namespace {

constexpr std::chrono::milliseconds kLookAgain{20};
constexpr std::chrono::seconds kLookForServer{1};
constexpr size_t kNumShown = 20;  ///< number of ended jobs in the list

/// Opens an existing queue; a mistyped path must not create one.
JobQueue queue_at(const std::string& folder) {
  JobQueue queue(folder);
  if (!files::is_folder(queue.root() / "queued"))
    throw Error(
        ExitCode::kInputMissing, "queue",
        fmt::format("{} is not a queue of jobs: lockstep submit and lockstep serve create one",
                    queue.root().string()));
  return queue;
}

JobState require_job(const JobQueue& queue, int64_t id) {
  const std::optional<JobState> state = queue.state(id);
  if (!state)
    throw Error(ExitCode::kInputMissing, "queue",
                fmt::format("{} has no job {}: lockstep ps lists them", queue.root().string(), id));
  return *state;
}

bool has_ended(JobState state) { return state != JobState::kQueued && state != JobState::kRunning; }

/// Returns the facts of a job. A damaged file of an ended job must not hide the others.
nlohmann::json facts_of(const JobQueue& queue, int64_t id) {
  nlohmann::json facts{{"id", id}, {"state", "damaged"}};
  try {
    const std::optional<JobState> state = queue.state(id);
    if (!state) return {};
    facts["state"] = job_state_name(*state);
    if (const std::optional<JobSpec> spec = queue.spec(id)) {
      facts["run"] = spec->run_name;
      facts["project_dir"] = spec->project_dir;
      facts["submitted"] = spec->submitted;
      facts["tries"] = spec->tries;
    }
    if (const std::optional<JobResult> result = queue.result(id)) {
      facts["tries"] = result->tries;
      facts["exit_code"] = result->exit_code;
      facts["message"] = result->message;
      facts["began"] = result->began;
      facts["ended"] = result->ended;
    }
  } catch (const Error& fault) {
    facts["message"] = fault.what();
  }
  return facts;
}

/// Returns a value as text. A damaged file may contain anything.
std::string text_in(const nlohmann::json& facts, const char* name, const char* if_missing) {
  if (!facts.contains(name)) return if_missing;
  return facts[name].is_string() ? facts[name].get<std::string>() : facts[name].dump();
}

/// Describes the server: none, ended without a trace, or running.
std::string server_line(const JobQueue& queue) {
  const std::string text = queue.server_text();
  if (text.empty()) return "no server: start one with lockstep serve\n";
  const auto server = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!server.is_object()) return "";
  const auto told = [&](const char* name) { return text_in(server, name, "?"); };
  // server.json may remain after a kill; only the lock shows that a server lives.
  if (!ServerWatch(queue).has_server())
    return fmt::format(
        "no server: process {} on {} was killed or crashed; start one with lockstep serve\n",
        told("pid"), told("host"));
  const std::string held =
      server.contains("held")
          ? fmt::format("jobs wait until a fault of the host is fixed: {}\n", told("held"))
          : "";
  return fmt::format("server: {} rank(s), process {} on {}, since {} UTC\n{}", told("ranks"),
                     told("pid"), told("host"), told("since"), held);
}

/// Formats one line of `lockstep ps`; unknown values are "-".
std::string row_of(const nlohmann::json& facts) {
  const auto text = [&](const char* name) { return text_in(facts, name, "-"); };
  return fmt::format("{:>5}  {:<9}  {:>5}  {:>4}  {:<19}  {}\n", text("id"), text("state"),
                     text("tries"), text("exit_code"), text("submitted"), text("run"));
}

/// Returns the numbers of all jobs. Each has a folder, but a job that is set aside may have lost
/// it.
std::vector<int64_t> all_numbers(const JobQueue& queue) {
  const std::vector<int64_t> jobs = queue.numbers_in("jobs"), aside = queue.numbers_in("set_aside");
  std::vector<int64_t> numbers;
  std::ranges::set_union(jobs, aside, std::back_inserter(numbers));
  return numbers;
}

/// Prints a message to stderr whenever the queue loses its server.
class Absence {
 public:
  explicit Absence(const JobQueue& queue) : watch_(queue), root_(queue.root().string()) {}

  void look(int64_t id) {
    if (std::chrono::steady_clock::now() < look_again_at_) return;
    look_again_at_ = std::chrono::steady_clock::now() + kLookForServer;
    const bool is_absent = !watch_.has_server();
    if (is_absent && !was_absent_)
      std::fprintf(stderr,
                   "no server runs on %s: job %s waits until one is started (lockstep serve)\n",
                   root_.c_str(), std::to_string(id).c_str());
    was_absent_ = is_absent;
  }

 private:
  ServerWatch watch_;
  const std::string root_;
  std::chrono::steady_clock::time_point look_again_at_;
  bool was_absent_ = false;
};

/// Prints the file from `offset` on and returns the new end.
std::streamoff print_from(const std::filesystem::path& path, std::streamoff offset) {
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(offset)) return offset;
  std::array<char, 1 << 14> part{};
  while (file.read(part.data(), part.size()) || file.gcount() > 0) {
    (void)std::fwrite(part.data(), 1, static_cast<size_t>(file.gcount()), stdout);
    offset += file.gcount();
  }
  (void)std::fflush(stdout);
  return offset;
}

}  // namespace

daemon::CommandResult list_command(const ListOptions& options) {
  const JobQueue queue = queue_at(options.queue);
  nlohmann::json jobs = nlohmann::json::array();
  size_t num_ended = 0, num_left_out = 0;
  std::vector<int64_t> numbers = all_numbers(queue);
  const std::vector<int64_t> queued = queue.numbers_in("queued"),
                             running = queue.numbers_in("running");
  for (auto id = numbers.rbegin(); id != numbers.rend(); ++id) {
    const bool waits_or_runs = std::binary_search(queued.begin(), queued.end(), *id) ||
                               std::binary_search(running.begin(), running.end(), *id);
    if (!waits_or_runs && num_ended == kNumShown && !options.all) {
      ++num_left_out;  // skip its files: a queue contains all jobs that ever ran
      continue;
    }
    nlohmann::json facts = facts_of(queue, *id);
    if (facts.is_null()) continue;  // a folder whose job was never submitted
    if (!waits_or_runs) ++num_ended;
    jobs.push_back(std::move(facts));
  }
  // Collected from the newest on, to find the newest 20; shown in order of numbers.
  std::reverse(jobs.begin(), jobs.end());
  if (options.json) return {jobs.dump(1) + "\n", 0};
  std::string table = server_line(queue);
  table += row_of({{"id", "ID"},
                   {"state", "STATE"},
                   {"tries", "TRIES"},
                   {"exit_code", "CODE"},
                   {"submitted", "SUBMITTED (UTC)"},
                   {"run", "RUN"}});
  for (const nlohmann::json& facts : jobs) table += row_of(facts);
  if (num_left_out > 0) table += fmt::format("and {} older: --all\n", num_left_out);
  return {table, 0};
}

daemon::CommandResult logs_command(const JobCommandOptions& options) {
  const JobQueue queue = queue_at(options.queue);
  Absence absence(queue);
  std::streamoff offset = 0;
  while (true) {
    const JobState state = require_job(queue, options.id);
    offset = print_from(queue.log(options.id), offset);
    if (has_ended(state) || !options.follow) {
      // Explain an empty output, which otherwise looks like a fault.
      if (offset == 0)
        fmt::print(stderr, "job {} is {}: it has no log{}\n", options.id, job_state_name(state),
                   has_ended(state) ? "" : " yet");
      return {"", 0};
    }
    absence.look(options.id);
    std::this_thread::sleep_for(kLookAgain);
  }
}

daemon::CommandResult cancel_command(const JobCommandOptions& options) {
  const JobState now = queue_at(options.queue).cancel(options.id);
  return {now == JobState::kCancelled
              ? fmt::format("job {} is cancelled\n", options.id)
              : fmt::format("job {} saves and stops; lockstep wait {} returns then\n", options.id,
                            options.id),
          0};
}

daemon::CommandResult wait_command(const JobCommandOptions& options) {
  const JobQueue queue = queue_at(options.queue);
  const auto began = std::chrono::steady_clock::now();
  Absence absence(queue);
  JobState state = require_job(queue, options.id);
  for (; !has_ended(state); state = require_job(queue, options.id)) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    if (options.timeout_s > 0 && waited.count() > options.timeout_s)
      throw Error(ExitCode::kUnavailable, "queue",
                  fmt::format("job {} has not ended within {} s: it is {}", options.id,
                              options.timeout_s, job_state_name(state)));
    absence.look(options.id);
    std::this_thread::sleep_for(kLookAgain);
  }
  if (state == JobState::kSetAside)
    throw Error(ExitCode::kBadData, "queue",
                fmt::format("job {} could not be read and was moved to {}: submit it again",
                            options.id, (queue.root() / "set_aside").string()));
  // Cancelled before it began: there may be no result file.
  const JobResult result =
      queue.result(options.id)
          .value_or(JobResult{.state = state, .exit_code = static_cast<int>(ExitCode::kStopped)});
  return {fmt::format("job {}: {}{}{}\n", options.id, job_state_name(state),
                      result.message.empty() ? "" : ": ", result.message),
          result.exit_code};
}

}  // namespace lockstep::job_server
