#include "job_server/job_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/yaml/config_reader.h"

// Jobs as JSON files, the queue of these files, and the check for a server. Both directions of the
// JSON format are in this file, so that they stay equal.
namespace lockstep::job_server {
namespace {

using Json = nlohmann::json;

constexpr int kJobVersion = 1;
constexpr std::array<std::string_view, kNumJobStates> kStateNames{
    "queued", "running", "done", "stopped", "cancelled", "failed", "set_aside"};

/// Formats JSON; bytes that are not UTF-8 are replaced.
std::string dumped(const Json& object) {
  return object.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

/// Parses JSON and passes it to `read`. Every fault is reported with the file's name.
template <typename Read>
auto parsed(const std::string& file, std::string_view text, const Read& read) {
  try {
    const Json object = Json::parse(text);
    // Check the version first: other versions may have other keys.
    if (const int version = object.at("version"); version != kJobVersion)
      throw Error(ExitCode::kBadData, "queue",
                  fmt::format("{}: it has version {}, this program reads version {}", file, version,
                              kJobVersion));
    return read(object);
  } catch (const Json::exception& fault) {
    throw Error(ExitCode::kBadData, "queue",
                fmt::format("{}: it is truncated or damaged: {}", file, fault.what()));
  }
}

/// Calls `call` with the key and value of each field of a job, which may be const.
template <typename Spec, typename Call>
void for_each_field(Spec& spec, const Call& call) {
  call("run", spec.run_name);
  call("project_dir", spec.project_dir);
  call("file", spec.file);
  call("folder", spec.folder);
  call("sets", spec.above.sets);
  call("estimator", spec.above.estimator);
  call("flags", spec.above.flags);
  call("submitted", spec.submitted);
  call("tries", spec.tries);
  call("last_save", spec.last_save);
  call("text", spec.text);
}

JobState state_named(const std::string& name) {
  const auto* const found = std::find(kStateNames.begin(), kStateNames.end(), name);
  if (found == kStateNames.end())
    throw Error(ExitCode::kBadData, "queue", fmt::format("'{}' is not a state of a job", name));
  return static_cast<JobState>(found - kStateNames.begin());
}

}  // namespace

std::string_view job_state_name(JobState state) {
  return kStateNames.at(static_cast<size_t>(state));
}

std::string text_of(const JobSpec& spec) {
  Json object{{"version", kJobVersion}};
  for_each_field(spec, [&](const char* key, const auto& value) { object[key] = value; });
  return dumped(object);
}

JobSpec parse_job(const std::string& file, std::string_view text) {
  return parsed(file, text, [](const Json& object) {
    JobSpec spec;
    for_each_field(spec, [&](const char* key, auto& value) { object.at(key).get_to(value); });
    return spec;
  });
}

std::string text_of(const JobResult& result, const JobSpec& spec) {
  return dumped({{"version", kJobVersion},
                 {"state", job_state_name(result.state)},
                 {"exit_code", result.exit_code},
                 {"message", result.message},
                 {"tries", result.tries},
                 {"run", spec.run_name},
                 {"project_dir", spec.project_dir},
                 {"submitted", spec.submitted},
                 {"began", result.began},
                 {"ended", result.ended}});
}

// A job's place in the folders is its state, and rename() is the only transition. So the server and
// clients need no lock between them, and a killed process leaves a consistent queue.

constexpr const char* kQueued = "queued";
constexpr const char* kRunning = "running";
constexpr const char* kSetAside = "set_aside";
constexpr const char* kJobs = "jobs";
constexpr int64_t kMaxSmallFileBytes = 1 << 16;  ///< of server.json and of a lock

/// Highest accepted number; far below an overflow of the next numbers.
constexpr int64_t kLastNumber = 999'999'999'999'999;

/// Returns 7 for "7" and "7.json"; nullopt for other names.
static std::optional<int64_t> number_of(const std::string& name) {
  const std::string digits = name.substr(0, name.find('.'));
  if (name != digits && name != digits + ".json") return std::nullopt;
  const std::optional<int64_t> number = parse_integer(digits);
  return number && *number > 0 && *number <= kLastNumber && std::to_string(*number) == digits
             ? number
             : std::nullopt;
}

static JobSpec read_job(const std::filesystem::path& path) {
  return parse_job(path.string(), files::read(path, JobQueue::kMaxJobBytes));
}

/// Refuses a folder that others may write to: they could run anything as the server's user.
static void require_closed(const std::filesystem::path& folder) {
  struct stat facts {};
  if (::stat(folder.c_str(), &facts) != 0 || (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  throw Error(ExitCode::kCannotCreate, "queue",
              fmt::format("{}: is writable by other users, who could run any program as the "
                          "server's user: chmod go-w {}",
                          folder.string(), folder.string()));
}

/// Creates a folder for this user alone. Job files contain passwords of run files.
static void make_private(const std::filesystem::path& folder) {
  if (folder.has_parent_path()) files::make_folders(folder.parent_path());
  if (::mkdir(folder.c_str(), S_IRWXU) == 0) return files::sync_folder(folder.parent_path());
  if (errno != EEXIST)
    throw Error(ExitCode::kCannotCreate, "queue",
                fmt::format("{}: cannot create the folder: {}; name another place", folder.string(),
                            std::strerror(errno)));
  require_closed(folder);
}

JobQueue::JobQueue(const std::filesystem::path& root)
    : root_(std::filesystem::absolute(root).lexically_normal()) {
  if (!root_.has_filename()) root_ = root_.parent_path();  // the path jobs/ means jobs
}

std::filesystem::path JobQueue::folder(int64_t id) const {
  return root_ / kJobs / std::to_string(id);
}

std::filesystem::path JobQueue::file(const char* place, int64_t id) const {
  return root_ / place / fmt::format("{}.json", id);
}

void JobQueue::make() const {
  make_private(root_);
  make_private(root_ / kJobs);
  for (const char* place : {kQueued, kRunning, kSetAside}) make_place(place);
}

void JobQueue::make_place(const char* name) const {
  make_private(root_ / name);
  // An earlier version has created it with the umask.
  (void)::chmod((root_ / name).c_str(), S_IRWXU);
}

void JobQueue::require_own(const std::filesystem::path& file) const {
  struct stat facts {
  }, of_root{};
  // lstat: a link would lead to a file of its target's owner.
  if (::lstat(file.c_str(), &facts) != 0 || ::stat(root_.c_str(), &of_root) != 0) return;
  // On a mount that maps root to another user, files of this process belong to the folder's owner.
  if (facts.st_uid == ::geteuid() || facts.st_uid == 0 || facts.st_uid == of_root.st_uid) return;
  throw Error(ExitCode::kBadData, "queue",
              fmt::format("{} belongs to user {}, who may not submit jobs here", file.string(),
                          facts.st_uid));
}

std::vector<int64_t> JobQueue::numbers_in(const char* place) const {
  std::vector<int64_t> numbers;
  for (const std::string& name : files::list(root_ / place))
    if (const auto number = number_of(name)) numbers.push_back(*number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int64_t JobQueue::max_queued() const {
  const auto server = nlohmann::json::parse(server_text(), nullptr, /*allow_exceptions=*/false);
  const bool says = server.is_object() && server.contains("max_queued") &&
                    server["max_queued"].is_number_integer();
  return says ? server["max_queued"].get<int64_t>() : kMaxQueued;
}

std::string JobQueue::server_text() const {
  return files::exists(server_file()) ? files::read(server_file(), kMaxSmallFileBytes) : "";
}

/// Reserves a number: the process that creates the folder owns it. mkdir() is atomic, so clients
/// need no lock.
int64_t JobQueue::make_number() const {
  const std::vector<int64_t> taken = numbers_in(kJobs);
  int64_t number = taken.empty() ? 1 : taken.back() + 1;
  while (::mkdir(folder(number).c_str(), S_IRWXU) != 0) {
    if (errno != EEXIST)
      throw Error(ExitCode::kCannotCreate, "queue",
                  fmt::format("{}: {}", folder(number).string(), std::strerror(errno)));
    ++number;
  }
  return number;
}

int64_t JobQueue::submit(JobSpec spec) const {
  make();
  const auto num_queued = static_cast<int64_t>(numbers_in(kQueued).size());
  if (const int64_t most = max_queued(); num_queued >= most)
    throw Error(ExitCode::kUnavailable, "queue",
                fmt::format("{} jobs already wait in {}, which is the limit (--max-queued of the "
                            "server): submit again when some have ended",
                            num_queued, root_.string()));
  const auto size_of = [](const JobSpec& one) { return static_cast<int64_t>(text_of(one).size()); };
  if (size_of(spec) > kMaxJobBytes)
    throw Error(ExitCode::kUsage, "queue",
                fmt::format("run file and command line need a job of {} bytes, the limit is {}",
                            size_of(spec), kMaxJobBytes));
  const int64_t id = make_number();
  // The default folder depends on the number, so it is set only now.
  if (spec.project_dir.empty()) spec.project_dir = (folder(id) / "run").string();
  files::write_atomically(file(kQueued, id), text_of(spec));
  return id;
}

JobState JobQueue::cancel(int64_t id) const {
  const std::optional<JobState> now = state(id);
  if (!now)
    throw Error(ExitCode::kInputMissing, "queue",
                fmt::format("{} has no job {}: lockstep ps lists them", root_.string(), id));
  if (now == JobState::kQueued) {
    const std::optional<JobSpec> submitted = spec(id);
    std::error_code fault;  // the server may take the job at the same moment
    std::filesystem::rename(file(kQueued, id), folder(id) / "job.json", fault);
    if (!fault) {
      const std::string time = files::utc_now();
      files::write_atomically(result_file(id),
                              text_of({.state = JobState::kCancelled,
                                       .exit_code = static_cast<int>(ExitCode::kStopped),
                                       .message = "cancelled before it started",
                                       .tries = 0,
                                       .began = "",
                                       .ended = time},
                                      submitted.value_or(JobSpec{})));
      files::sync_folder(root_ / kQueued);
      return JobState::kCancelled;
    }
  }
  // Not queued any more and not running: it has ended in the meantime.
  if (!files::exists(file(kRunning, id)))
    throw Error(ExitCode::kUsage, "queue",
                fmt::format("job {} has already ended ({}): nothing to cancel", id,
                            job_state_name(state(id).value_or(*now))));
  files::write_atomically(cancel_file(id), files::utc_now() + "\n");
  return JobState::kRunning;
}

void JobQueue::move(const char* from, int64_t id, const std::filesystem::path& to) const {
  files::rename_file(file(from, id), to);
  // Both folders, since a rename after a power loss must be in one of them.
  files::sync_folder(to.parent_path());
  files::sync_folder(root_ / from);
}

std::optional<Job> JobQueue::read_or_set_aside(const char* place, int64_t id) const {
  try {
    require_own(file(place, id));
    return Job{id, read_job(file(place, id))};
  } catch (const Error& fault) {
    if (fault.code() == ExitCode::kInputMissing) return std::nullopt;  // cancelled meanwhile
    log::warning(
        "queue",
        fmt::format("job {} is unreadable and was moved to {}; the other jobs continue: {}", id,
                    file(kSetAside, id).string(), fault.what()));
    move(place, id, file(kSetAside, id));
    return std::nullopt;
  }
}

std::optional<Job> JobQueue::take(const MayBegin& may_begin) const {
  for (const int64_t id : numbers_in(kRunning)) {
    if (files::exists(result_file(id)))  // the server was killed just after the job's end
      move(kRunning, id, folder(id) / "job.json");
    else if (std::optional<Job> job = read_or_set_aside(kRunning, id))
      return job;
  }
  for (const int64_t id : numbers_in(kQueued)) {
    if (may_begin && !may_begin(id)) continue;
    const std::optional<Job> job = read_or_set_aside(kQueued, id);
    std::error_code fault;  // it may be cancelled at this moment
    if (job) std::filesystem::rename(file(kQueued, id), file(kRunning, id), fault);
    if (!job || fault) continue;
    files::sync_folder(root_ / kRunning);
    return job;
  }
  return std::nullopt;
}

void JobQueue::note(const Job& job) const {
  files::write_atomically(file(kRunning, job.id), text_of(job.spec));
}

std::optional<double> JobQueue::noted_at_s(int64_t id) const {
  struct stat facts {};
  if (::stat(file(kRunning, id).c_str(), &facts) != 0) return std::nullopt;
  return static_cast<double>(facts.st_mtim.tv_sec) +
         static_cast<double>(facts.st_mtim.tv_nsec) * 1e-9;
}

void JobQueue::put_back(const Job& job) const {
  // The notes first: after the move, a server may take the job at once.
  note(job);
  move(kRunning, job.id, file(kQueued, job.id));
}

void JobQueue::end(const Job& job, const JobResult& result) const {
  files::make_folders(folder(job.id));
  // The result before the move: a server that finds both knows that the job has ended.
  files::write_atomically(result_file(job.id), text_of(result, job.spec));
  move(kRunning, job.id, folder(job.id) / "job.json");
  files::remove_file(cancel_file(job.id));
}

std::optional<JobState> JobQueue::state(int64_t id) const {
  // Checked in the order in which a job passes through them, so a job that moves meanwhile is
  // found.
  if (files::exists(file(kQueued, id))) return JobState::kQueued;
  if (files::exists(file(kRunning, id)) && !files::exists(result_file(id)))
    return JobState::kRunning;
  if (const std::optional<JobResult> ended = result(id)) return ended->state;
  if (files::exists(file(kSetAside, id))) return JobState::kSetAside;
  if (files::exists(folder(id) / "job.json"))
    return JobState::kCancelled;                                   // its result was not written
  if (files::exists(file(kQueued, id))) return JobState::kQueued;  // it was put back
  return std::nullopt;
}

std::optional<JobResult> JobQueue::result(int64_t id) const {
  if (!has_ended(id)) return std::nullopt;
  const std::string text = files::read(result_file(id), kMaxJobBytes);
  return parsed(result_file(id).string(), text, [](const Json& object) {
    return JobResult{.state = state_named(object.at("state")),
                     .exit_code = object.at("exit_code"),
                     .message = object.at("message"),
                     .tries = object.at("tries"),
                     .began = object.at("began"),
                     .ended = object.at("ended")};
  });
}

bool JobQueue::has_ended(int64_t id) const { return files::exists(result_file(id)); }

std::optional<JobSpec> JobQueue::spec(int64_t id) const {
  for (const auto& path : {file(kQueued, id), file(kRunning, id), folder(id) / "job.json"}) {
    try {
      if (files::exists(path)) return read_job(path);
    } catch (const Error&) {
      // Moved meanwhile, or damaged; the server reports damage.
    }
  }
  return std::nullopt;
}

// A lock file may belong to a process on another host, which cannot be checked. Then only its
// heartbeat shows that it is alive.

std::optional<files::LockHolder> holder_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / ".lock";
  if (!files::exists(file)) return std::nullopt;
  try {
    return files::LockHolder::parse(files::read(file, kMaxSmallFileBytes));
  } catch (const Error&) {
    return std::nullopt;  // removed meanwhile
  }
}

bool HolderWatch::lives() {
  const std::optional<files::LockHolder> holder = holder_of(folder_);
  if (!holder) return false;
  // A process on this host can be checked at once, even if its heartbeat is late.
  if (holder->can_be_asked()) return holder->is_alive();
  std::string heartbeat = fmt::format("{} {}", holder->token, holder->num_beats);
  if (heartbeat != heartbeat_) {
    heartbeat_ = std::move(heartbeat);
    moved_at_ = Clock::now();
  }
  return Clock::now() - moved_at_ < kHeartbeatPatience;
}

}  // namespace lockstep::job_server
