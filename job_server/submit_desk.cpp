#include "job_server/submit_desk.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <utility>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/threads.h"
#include "base/yaml/yaml_check.h"
#include "base/yaml/yaml_document.h"

namespace lockstep::job_server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFolder = "submitted";
constexpr std::chrono::milliseconds kAskAgainAfter{2};
constexpr std::chrono::milliseconds kPatience{150};  ///< until the client takes its job back
constexpr std::chrono::seconds kLookAfterServer{1};
/// Longer than a check may take, including the time to end it.
constexpr std::chrono::seconds kLongestWait{60};
constexpr double kKillPatience_s = 1;
constexpr int64_t kAnswerLimitBytes = 1 << 20;
// A text inside a text: escapes may double it.
constexpr int64_t kCheckedLimitBytes = 2 * JobQueue::kMaxJobBytes;

std::filesystem::path folder_of(const JobQueue& queue) { return queue.root() / kFolder; }

std::filesystem::path with(std::filesystem::path path, const char* extension) {
  return path.replace_extension(extension);
}

/// Writes a file atomically. Without fsync, since it is useless after a power loss.
void write(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path beside = with(path, ".new");
  std::ofstream file(beside, std::ios::binary);
  if (!file.write(text.data(), static_cast<std::streamsize>(text.size())).flush())
    throw Error(ExitCode::kIo, "queue", fmt::format("{} cannot be written", beside.string()));
  std::filesystem::rename(beside, path);
}

/// True if the text contains one of these words, in keys or values: `estimator:`, `plugins:`,
/// `type: plugin`, `type: torchscript`, ...
bool names_code(const std::string& text) {
  static constexpr std::array kWords{"python", "plugin", "estimator", "torchscript"};
  return std::ranges::any_of(
      kWords, [&](const char* word) { return text.find(word) != std::string::npos; });
}

bool names_code(const YAML::Node& node) {
  if (node.IsScalar()) return names_code(node.Scalar());
  if (!node.IsDefined() || node.IsNull()) return false;
  return std::any_of(node.begin(), node.end(), [&](const auto& item) {
    return node.IsMap() ? names_code(item.first) || names_code(item.second) : names_code(item);
  });
}

/// Searches the parsed text, so that an escape in YAML cannot hide a word. A text that is not YAML
/// loads nothing. A text with unbounded alias expansion counts as code: the client must refuse it.
bool names_code_of_yaml(const std::string& text) {
  try {
    (void)check_events(text, [](const YAML::Mark& /*mark*/, const std::string& /*message*/) {});
    return names_code(YAML::Load(text));
  } catch (const YamlStop&) {
    return true;
  } catch (const YAML::Exception&) {
    return false;
  }
}

/// True if reading the run file may load code: an estimator, a plug-in, TorchScript, Python. Such a
/// job is checked by its client, never by a server.
bool brings_code(const JobSpec& spec) {
  return !spec.above.estimator.empty() || !spec.above.flags.empty() ||
         names_code_of_yaml(spec.text) ||
         std::any_of(spec.above.sets.begin(), spec.above.sets.end(), [](const std::string& set) {
           return names_code(set) || names_code_of_yaml(set.substr(set.find('=') + 1));
         });
}

/// True while the desk accepts jobs: the server runs and no job runs.
bool has_open_desk(const JobQueue& queue) {
  return files::is_folder(folder_of(queue)) && !queue.server_text().empty() &&
         queue.numbers_in("running").empty() && queue.numbers_in("queued").empty();
}

/// Returns the token of the current server. A later server has another one.
std::string token_of_server(const JobQueue& queue) {
  const std::optional<files::LockHolder> holder = holder_of(queue.root());
  return holder ? holder->token : "";
}

bool is_gone(const std::filesystem::path& request) {
  return !files::exists(request) && !files::exists(with(request, ".taken")) &&
         !files::exists(with(request, ".answer"));
}

[[noreturn]] void give_up(const std::string& why) {
  throw Error(ExitCode::kUnavailable, "queue",
              why + ": check lockstep ps before submitting it again");
}

/// Waits for the answer. Returns false if the request was taken back. A supervisor may replace the
/// server that has taken the request; the new server knows nothing of it.
bool wait_for_answer(const JobQueue& queue, const std::filesystem::path& request) {
  const std::string token = token_of_server(queue);
  HolderWatch server(queue.root());
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_look = begin + kLookAfterServer;
  const std::filesystem::path answer = with(request, ".answer");
  std::error_code fault;
  while (!files::exists(answer)) {
    const Clock::time_point now = Clock::now();
    // remove() succeeds only if the desk has not taken the request: exactly one of them gets it.
    if (now - begin > kPatience && std::filesystem::remove(request, fault)) return false;
    if (now > next_look) {
      next_look = now + kLookAfterServer;
      if (!server.lives() || token_of_server(queue) != token || is_gone(request))
        give_up("the server ended while it checked the job");
      if (now - begin > kLongestWait)
        give_up(fmt::format("no answer from the server within {} s", kLongestWait.count()));
    }
    std::this_thread::sleep_for(kAskAgainAfter);
  }
  return true;
}

/// Reads the answer. nullopt means that the client must check the job itself.
std::optional<daemon::CommandResult> told_by(const std::filesystem::path& answer) {
  const auto json = nlohmann::json::parse(files::read(answer, kAnswerLimitBytes));
  files::remove_file(answer);
  if (json.contains("elsewhere")) return std::nullopt;
  const int exit_code = json.at("exit_code");
  if (exit_code == 0)
    return daemon::CommandResult{fmt::format("{}\n", json.at("id").get<int64_t>()), 0};
  std::fprintf(stderr, "%s\n", json.at("message").get<std::string>().c_str());
  return daemon::CommandResult{"", exit_code};
}

nlohmann::json refusal(ExitCode code, const char* message) {
  return {{"exit_code", static_cast<int>(code)}, {"message", message}};
}

/// Runs the check in the child and writes its result: the job with its run's name, or a refusal.
void check_and_tell(const std::filesystem::path& taken, const std::filesystem::path& checked,
                    const std::function<void(JobSpec*)>& check) {
  nlohmann::json said;
  try {
    JobSpec spec = parse_job(taken.string(), files::read(taken, JobQueue::kMaxJobBytes));
    const ScopedWorkingFolder there(spec.folder);
    check(&spec);
    said = {{"exit_code", 0}, {"job", text_of(spec)}};
  } catch (const Error& fault) {
    said = refusal(fault.code(), fault.what());
  }
  write(checked, json_text(said));
}

/// Resets the child's signals, as exec() would: a stop request to the server must not reach it. The
/// child dies with the thread that watches it.
void become_child() {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2})
    (void)::signal(number, SIG_IGN);
}

/// Waits for the child and returns its status from waitpid(). nullopt: it did not end within the
/// limit, or the wait was given up.
std::optional<int> wait_for_child(pid_t child, double limit_s, const std::atomic<bool>& gives_up) {
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(limit_s));
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > end || gives_up) return std::nullopt;
    std::this_thread::sleep_for(kAskAgainAfter);
  }
  return status;
}

}  // namespace

SubmitDesk::SubmitDesk(const JobQueue& queue, std::function<void(JobSpec*)> check,
                       double check_limit_s)
    : queue_(queue), check_(std::move(check)), check_limit_s_(check_limit_s) {
  std::error_code ignored;  // left by clients of an earlier server
  std::filesystem::remove_all(folder_of(queue), ignored);
  queue.make_place(kFolder);
}

SubmitDesk::~SubmitDesk() {
  is_ending_ = true;
  if (thread_.joinable()) thread_.join();
  std::error_code ignored;
  std::filesystem::remove_all(folder_of(queue_), ignored);
}

void SubmitDesk::look() {
  if (is_busy_) return;
  std::error_code fault;
  std::filesystem::directory_iterator entry(folder_of(queue_), fault), end;
  for (; !fault && entry != end; entry.increment(fault)) {
    if (entry->path().extension() != ".json") continue;
    const std::filesystem::path taken = with(entry->path(), ".taken");
    std::filesystem::rename(entry->path(), taken, fault);
    if (fault) return;  // the client has taken it back
    // The previous thread has set is_busy_ to false, so this join does not wait.
    if (thread_.joinable()) thread_.join();
    is_busy_ = true;
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::thread([this, taken] {
      serve(taken);
      is_busy_ = false;
    });
    return;
  }
}

std::optional<int> SubmitDesk::run_in_child(const std::filesystem::path& taken,
                                            const std::filesystem::path& checked) {
  // fork() without exec(): the child needs the tables that the server has in memory.
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    become_child();
    try {
      check_and_tell(taken, checked, check_);
    } catch (...) {
      ::_exit(1);  // the client checks the job itself and reports the fault
    }
    ::_exit(0);
  }
  const std::optional<int> status = wait_for_child(child, check_limit_s_, is_ending_);
  if (!status) {
    (void)::kill(child, SIGKILL);
    // It may hang in the kernel; do not wait for that.
    if (!wait_for_child(child, kKillPatience_s, false)) abandoned_.push_back(child);
    return std::nullopt;
  }
  return WIFEXITED(*status) ? std::optional(WEXITSTATUS(*status)) : std::nullopt;
}

void SubmitDesk::serve(const std::filesystem::path& taken) {
  std::erase_if(abandoned_, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
  const std::filesystem::path checked = with(taken, ".checked");
  nlohmann::json answer{{"elsewhere", true}};
  try {
    queue_.require_own(taken);
    const JobSpec asked = parse_job(taken.string(), files::read(taken, JobQueue::kMaxJobBytes));
    // A hung child means that something on this host hangs; leave further checks to the clients.
    if (!brings_code(asked) && abandoned_.empty() && run_in_child(taken, checked) == 0) {
      answer = nlohmann::json::parse(files::read(checked, kCheckedLimitBytes));
      if (answer.at("exit_code") == 0)
        answer = {{"exit_code", 0},
                  {"id", queue_.submit(
                             parse_job(checked.string(), answer.at("job").get<std::string>()))}};
    }
  } catch (const Error& fault) {
    answer = refusal(fault.code(), fault.what());
  } catch (const std::exception& fault) {
    answer = refusal(ExitCode::kBug, fault.what());
  }
  // The folder is removed soon: some clients would find this answer, others nothing.
  if (is_ending_ && answer.contains("elsewhere")) return;
  try {
    // The rename comes last: with the answer, no other file of this job is left.
    write(taken, json_text(answer));
    files::remove_file(checked);
    std::filesystem::rename(taken, with(taken, ".answer"));
  } catch (const std::exception& fault) {
    log::warning("serve", fmt::format("a submitted job gets no answer: {}", fault.what()));
  }
}

JobSpec spec_of(const SubmitOptions& options) {
  return {.file = std::filesystem::absolute(options.config_file).string(),
          .text = YamlDocument::read_text(options.config_file),
          .folder = std::filesystem::current_path().string(),
          .above = options.above,
          .submitted = files::utc_now()};
}

std::optional<daemon::CommandResult> submit_at_desk(const SubmitOptions& options) {
  const JobQueue queue(options.queue);
  if (!has_open_desk(queue)) return std::nullopt;
  const JobSpec spec = spec_of(options);
  if (brings_code(spec)) return std::nullopt;
  const std::filesystem::path request =
      folder_of(queue) / fmt::format("{}-{}.json", host_name(), ::getpid());
  try {
    write(request, text_of(spec));
  } catch (const std::exception&) {
    return std::nullopt;  // the server has just ended, or the folder belongs to another user
  }
  if (!wait_for_answer(queue, request)) return std::nullopt;
  return told_by(with(request, ".answer"));
}

}  // namespace lockstep::job_server
