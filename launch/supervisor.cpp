#include "launch/supervisor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/exit_class.h"
#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/log.h"
#include "base/threads.h"
#include "launch/attempt.h"
#include "launch/processes.h"
#include "launch/restarts.h"
#include "launch/stop_signals.h"

// Restarts the ranks until the run is done. The order of the members matters: the claim of the
// run's folder and the first look for checkpoints come before signals are queued, since both may
// hang.
namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds kSaveLook{5}, kEnd{10};
constexpr double kProbe_s = 20;   ///< for a host to prove that mpirun reaches it
constexpr int kNotStarted = 132;  ///< by mpirun; also 128 + SIGILL
constexpr int kStopped = static_cast<int>(ExitCode::kStopped);

/// True if the folder belongs to this user and no other user can write to it.
bool is_own_folder(const std::filesystem::path& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
         facts.st_uid == ::geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// Returns the folder of this user's starts. Its name is known, so another user may have created
/// it. Then a new folder with a random name is used.
std::filesystem::path folder_of_starts() {
  const std::filesystem::path all = std::filesystem::temp_directory_path();
  const std::filesystem::path known = all / fmt::format("lockstep-mpi.{}", ::geteuid());
  (void)::mkdir(known.c_str(), S_IRWXU);
  if (is_own_folder(known)) return known;
  std::string made = (all / "lockstep-mpi.XXXXXX").string();
  if (::mkdtemp(made.data()) == nullptr)
    throw Error(ExitCode::kCannotCreate, "launch",
                fmt::format("{}: {}; set TMPDIR to a folder that this user may write to", made,
                            std::strerror(errno)));
  return made;
}

/// Open MPI's session folder, private to this supervisor. In a shared folder, a job that starts
/// while another one ends would fail.
class SessionFolder {
 public:
  SessionFolder() : path_(folder_of_starts() / std::to_string(::getpid())) {}
  ~SessionFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// The supervisor's lock in the run's folder. If the run was refused, nothing else is there, and
/// the folder is removed again.
class Claim {
 public:
  explicit Claim(const std::filesystem::path& run) : run_(run), own_(run / "supervisor") {
    files::make_folders(own_);
    lock_.emplace(own_);
  }
  ~Claim() {
    lock_.reset();
    if (!is_alone()) return;
    std::error_code ignored;
    std::filesystem::remove_all(own_, ignored);
    std::filesystem::remove(run_, ignored);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  // True if the run's folder contains only the supervisor's own folder.
  bool is_alone() const {
    try {
      return files::list(run_) == std::vector<std::string>{own_.filename().string()};
    } catch (const Error&) {
      return false;
    }
  }

  std::filesystem::path run_, own_;
  std::optional<files::FolderLock> lock_;
};

/// Set for each start: earlier starts, its time in s since 1970, and how the last one ended.
constexpr const char* kRestartCount = "LOCKSTEP_RESTART_COUNT";
constexpr const char* kStartedAt = "LOCKSTEP_STARTED_AT";
constexpr const char* kLastExitCode = "LOCKSTEP_LAST_EXIT_CODE";

/// Returns the names of the variables that ranks on other hosts need: ours, and the keys of stores.
std::vector<std::string> own_variables() {
  std::vector<std::string> names{kRestartCount, kStartedAt, kLastExitCode};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    const bool is_wanted =
        std::ranges::any_of(std::array{"LOCKSTEP_", "AWS_", "GS_"},
                            [&](const char* beginning) { return name.starts_with(beginning); });
    if (is_wanted && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  return names;
}

class Supervisor {
 public:
  explicit Supervisor(const SupervisorOptions& options)
      : options_(options),
        pool_(options.hosts, options.num_ranks, options.min_ranks),
        restarts_(options.max_restarts),
        saves_("saves", options.newest_save) {
    // The log writes in the background: a blocked terminal, pipe or mount must not delay signals.
    log::configure_console({.in_background = true});
    stop_signals_are_heard();
    adopt_orphans();
  }

  ~Supervisor() { (void)kill_descendants(kKillPatience_s); }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run() {
    if (is_told_to_stop_within(0)) {  // signals that came during the start
      log::info("launch", "stop requested before any rank was started: run the same command again");
      return kStopped;
    }
    while (true) {
      const int code = start();
      // Done or stopped on request; any other code is examined.
      if (code == 0 || code == kStopped) return code;
      if (wish_.to_stop) return stopped(code);
      if (!is_settled(code) && exit_class(code) != ExitClass::kTransient) return ended(code);
      if (!pause_before_another_try(code)) return wish_.to_stop ? kStopped : code;
    }
  }

 private:
  int exit_code_of(int code_of_mpirun, const MpirunMessages& messages) const {
    if (options_.num_spares == 0) return code_of_mpirun;
    // mpirun may return 0 whatever its processes do.
    return messages.exit_code().value_or(
        code_of_mpirun != 0 ? code_of_mpirun : static_cast<int>(ExitCode::kUnavailable));
  }

  int start() {
    Attempt attempt(begin_ranks(), options_.grace_s, &signals_, &wish_);
    const int code_of_mpirun = attempt.run();
    const int code = exit_code_of(code_of_mpirun, attempt.messages());
    last_code_ = code;
    std::set<std::string> lost = attempt.messages().lost();
    // mpirun sometimes ends without naming the host, so ask each host directly.
    if (lost.empty() && (attempt.was_stuck() || is_launcher_fault(code_of_mpirun)) &&
        !wish_.to_stop)
      lost = unreachable(pool_.hosts(), options_.mpirun_arguments, variables(restarts_.count()),
                         kProbe_s);
    for (const std::string& host : pool_.note(lost, attempt.messages().killed_on()))
      log::warning("launch", fmt::format("host {} has failed and is excluded", host));
    if (pool_.is_short())
      log::warning("launch",
                   "a host has failed and cannot be excluded: the others have too few slots for "
                   "--min-ranks");
    return code;
  }

  std::vector<std::string> command(const std::vector<std::string>& program) const {
    return mpirun_command({.num_ranks = pool_.num_ranks(),
                           .hosts = pool_.hosts(),
                           .program = program,
                           .exported = own_variables(),
                           .more = options_.mpirun_arguments,
                           .is_root = ::geteuid() == 0,
                           .num_spares = options_.num_spares});
  }

  Child::Variables variables(int num_restarts) const {
    Child::Variables all{{kRestartCount, std::to_string(num_restarts)}};
    // Open MPI 4 reads the first name, Open MPI 5 the second one.
    const auto add = [&all](const char* name_4, const char* name_5, const std::string& value) {
      if (std::getenv(name_4) != nullptr || std::getenv(name_5) != nullptr) return;
      all.emplace_back(name_4, value);
      all.emplace_back(name_5, value);
    };
    add("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", session_.path());
    // Ranks on this host use no network card, so hwloc need not read PCI devices.
    if (options_.hosts.empty() && options_.mpirun_arguments.empty() &&
        std::getenv("HWLOC_COMPONENTS") == nullptr)
      all.emplace_back("HWLOC_COMPONENTS", "-linuxio,-pci");
    return all;
  }

  std::unique_ptr<Child> begin_ranks() {
    // A restart resumes only if these ranks have written a checkpoint.
    const std::vector<std::string> words = command(options_.program(newest_save_ != first_save_));
    log::debug("launch", fmt::format("{}", fmt::join(words, " ")));
    Child::Variables all = variables(restarts_.count());
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    all.emplace_back(kStartedAt, fmt::format("{:.3f}", std::chrono::duration<double>(now).count()));
    all.emplace_back(kLastExitCode, std::to_string(last_code_));
    return std::make_unique<Child>(words, all);
  }

  /// Returns the newest visible checkpoint. A disk that hangs for the ranks may hang here too, and
  /// a store may be down; then nullopt is returned.
  std::optional<SaveFound> look_for_save() {
    const auto answer = saves_.get(kSaveLook);
    if (!answer.fault.empty())
      log::warning("launch",
                   fmt::format("the newest checkpoint cannot be determined ({})", answer.fault));
    return answer.value;
  }

  /// Returns the checkpoint from which the next ranks start, for a message.
  static std::string place_of(const std::optional<SaveFound>& save) {
    if (!save) return "the newest checkpoint that they find";
    return save->prefix.empty() ? "the beginning, as there is no checkpoint" : save->prefix;
  }

  /// True if the caller's settle() wants a restart, whatever the code.
  bool is_settled(int code) const {
    try {
      return options_.settle && options_.settle(code);
    } catch (const Error& fault) {
      log::warning("launch", fault.what());
      return false;
    }
  }

  /// Explains mpirun's code for a program that cannot be started. Its own message is far above and
  /// does not name the option.
  static int ended(int code) {
    if (code == kNotStarted)
      log::error(
          "launch",
          fmt::format(
              "the ranks ended with {}: a host cannot start the program (--program; it must exist "
              "on all hosts), or its processor lacks an instruction that the program uses",
              code));
    return code;
  }

  int stopped(int code) {
    if (!exit_fact(code).is_usual_after_a_stop) {
      log::error(
          "launch",
          fmt::format("stop requested, but the ranks ended with {}: see the log above", code));
      return code;
    }
    const bool has_save = look_for_save().value_or(newest_save_) != SaveFound{};
    log::info("launch",
              fmt::format("ended on request (mpirun: {}); {}: run the same command again to {}",
                          code, has_save ? "the last checkpoint is kept" : "there is no checkpoint",
                          has_save ? "continue" : "start from the beginning"));
    return kStopped;
  }

  /// Waits before another try. Returns false if there is none: the limit is reached, or a stop was
  /// requested.
  bool pause_before_another_try(int code) {
    const std::optional<SaveFound> save = look_for_save();
    const bool made_progress = save && *save != newest_save_;
    if (save) newest_save_ = *save;
    const std::optional<double> pause_s = restarts_.next_pause_s(made_progress);
    if (!pause_s) {
      log::error("launch",
                 fmt::format("the ranks ended with {}, after {} restart(s) in a row without a new "
                             "checkpoint (--max-restarts): see the log above",
                             code, restarts_.max_in_a_row()));
      return false;
    }
    log::warning(
        "launch",
        fmt::format("the ranks ended with {}: restart {} {}, from {}", code, restarts_.count(),
                    *pause_s == 0 ? "at once" : fmt::format("in {} s", *pause_s), place_of(save)));
    return !is_told_to_stop_within(*pause_s);
  }

  bool is_told_to_stop_within(double pause_s) {
    pollfd source{signals_.descriptor(), POLLIN, 0};
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(pause_s);
    while (!wish_.to_stop) {
      // SIGUSR2 has nothing to save now, and SIGCHLD only wakes poll().
      for (const int signal_number : signals_.take())
        wish_.to_stop = wish_.to_stop || (signal_number != SIGCHLD && signal_number != SIGUSR2);
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (wish_.to_stop || left.count() <= 0) break;
      (void)::poll(&source, 1, static_cast<int>(left.count()));
    }
    return wish_.to_stop;
  }

  const SupervisorOptions& options_;
  HostPool pool_;
  Restarts restarts_;
  Claim claim_{options_.folder};
  // This call may hang with its mount, so it comes before signals_: until then a signal ends the
  // process.
  SaveFound first_save_ = options_.newest_save(), newest_save_ = first_save_;
  SignalQueue signals_{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
  BackgroundValue<SaveFound> saves_;
  SessionFolder session_;
  Wish wish_;
  int last_code_ = 0;
};

}  // namespace

int supervise(const SupervisorOptions& options) {
  std::optional<Deadline> limit;
  auto supervisor = std::make_unique<Supervisor>(options);
  const int code = supervisor->run();
  // Releasing the lock of the run's folder may hang with its mount.
  limit.emplace(kEnd, [code] { ::_exit(code); });
  supervisor.reset();
  return code;
}

}  // namespace lockstep::launch
