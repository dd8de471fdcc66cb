#include "daemon/serve/submit_desk.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/lock_holder.h"
#include "base/log.h"
#include "base/threads/signals_blocked.h"
#include "base/yaml/yaml_document.h"
#include "daemon/serve/in_folder.h"
#include "daemon/serve/server_watch.h"

namespace lockstep::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFolder = "submitted";
constexpr std::chrono::milliseconds kAskAgainAfter{2};
constexpr std::chrono::milliseconds kPatience{150};  ///< until the desk has taken a job
constexpr std::chrono::seconds kLookAfterServer{1};
constexpr int64_t kAnswerLimitBytes = 1 << 20;

std::filesystem::path folder_of(const JobQueue& queue) { return queue.root() / kFolder; }

std::filesystem::path with(std::filesystem::path path, const char* extension) {
  return path.replace_extension(extension);
}

/// Nobody needs it after a loss of power, so that it need not be on the disk.
void write(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path beside = with(path, ".new");
  std::ofstream file(beside, std::ios::binary);
  if (!file.write(text.data(), static_cast<std::streamsize>(text.size())).flush())
    throw Error(ExitCode::kIo, "queue", fmt::format("{} cannot be written", beside.string()));
  std::filesystem::rename(beside, path);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

bool brings_code(const JobSpec& spec) {
  return !spec.estimator.empty() || !spec.flags.empty() ||
         spec.text.find("python") != std::string::npos;
}

/// The desk looks while the server is there and no job runs.
bool has_open_desk(const JobQueue& queue) {
  std::error_code ignored;
  return std::filesystem::is_directory(folder_of(queue), ignored) && !queue.server_text().empty() &&
         queue.numbers_in("running").empty() && queue.numbers_in("queued").empty();
}

/// False: it was taken back.
bool wait_for_answer(const JobQueue& queue, const std::filesystem::path& request) {
  ServerWatch server(queue);
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_look = begin + kLookAfterServer;
  const std::filesystem::path answer = with(request, ".answer");
  std::error_code fault;
  while (!std::filesystem::exists(answer, fault)) {
    const Clock::time_point now = Clock::now();
    if (now - begin > kPatience && std::filesystem::remove(request, fault)) return false;
    if (now > next_look) {
      next_look = now + kLookAfterServer;
      if (!server.has_server())
        throw Error(ExitCode::kUnavailable, "queue",
                    "the server ended while it checked the job: look at lockstep ps before it is "
                    "submitted again");
    }
    std::this_thread::sleep_for(kAskAgainAfter);
  }
  return true;
}

CommandResult told_by(const std::filesystem::path& answer) {
  const auto json = nlohmann::json::parse(files::read(answer, kAnswerLimitBytes));
  files::remove_file(answer);
  const int exit_code = json.at("exit_code");
  if (exit_code == 0) return {fmt::format("{}\n", json.at("id").get<int64_t>()), 0};
  std::fprintf(stderr, "%s\n", json.at("message").get<std::string>().c_str());
  return {"", exit_code};
}

nlohmann::json refusal(ExitCode code, const char* message) {
  return {{"exit_code", static_cast<int>(code)}, {"message", message}};
}

}  // namespace

SubmitDesk::SubmitDesk(const JobQueue& queue, std::function<void(JobSpec*)> check)
    : queue_(queue), check_(std::move(check)) {
  std::error_code ignored;  // what clients of an earlier server left
  std::filesystem::remove_all(folder_of(queue), ignored);
  files::make_folders(folder_of(queue));
}

SubmitDesk::~SubmitDesk() {
  if (thread_.joinable()) thread_.join();
  std::error_code ignored;
  std::filesystem::remove_all(folder_of(queue_), ignored);
}

void SubmitDesk::look() {
  if (is_busy_) return;
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(queue_), fault)) {
    if (entry.path().extension() != ".json") continue;
    const std::filesystem::path taken = with(entry.path(), ".taken");
    std::filesystem::rename(entry.path(), taken, fault);
    if (fault) continue;  // the client has taken it back
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

void SubmitDesk::serve(const std::filesystem::path& taken) const {
  nlohmann::json answer;
  try {
    JobSpec spec = parse_job(taken.string(), files::read(taken, JobQueue::kMaxJobBytes));
    {
      const InFolder there(spec.folder);
      check_(&spec);
    }
    answer = {{"exit_code", 0}, {"id", queue_.submit(std::move(spec))}};
  } catch (const Error& fault) {
    answer = refusal(fault.code(), fault.what());
  } catch (const std::exception& fault) {
    answer = refusal(ExitCode::kBug, fault.what());
  }
  try {
    write(with(taken, ".answer"),
          answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    files::remove_file(taken);
  } catch (const std::exception& fault) {
    log::warning("serve", fmt::format("a job that was submitted gets no answer: {}", fault.what()));
  }
}

JobSpec spec_of(const SubmitOptions& options) {
  return {.file = std::filesystem::absolute(options.config_file).string(),
          .text = YamlDocument::read_text(options.config_file),
          .folder = std::filesystem::current_path().string(),
          .sets = options.sets,
          .estimator = options.estimator,
          .flags = options.flags,
          .submitted = files::utc_now()};
}

std::optional<CommandResult> submit_at_desk(const SubmitOptions& options) {
  const JobQueue queue(options.queue);
  if (!has_open_desk(queue)) return std::nullopt;
  const JobSpec spec = spec_of(options);
  if (brings_code(spec)) return std::nullopt;
  const std::filesystem::path request =
      folder_of(queue) / fmt::format("{}-{}.json", host_name(), ::getpid());
  try {
    write(request, text_of(spec));
  } catch (const std::exception&) {
    return std::nullopt;  // the server has just ended, or the folder is another user's
  }
  if (!wait_for_answer(queue, request)) return std::nullopt;
  return told_by(with(request, ".answer"));
}

}  // namespace lockstep::daemon
