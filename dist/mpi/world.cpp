// Start and end of MPI. MPI's own calls wait without limit, so each wait here has a deadline.
#include "dist/mpi/world.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/threads/deadline.h"
#include "dist/mpi/make_communicator.h"
#include "dist/mpi/notice_board.h"
#include "dist/mpi/open_mpi_settings.h"
#include "dist/mpi/peer/mpi_handles.h"
#include "dist/mpi/shm/shared_window.h"

namespace lockstep::dist::mpi {
namespace {

// Limit for MPI_Abort. All ranks must end within 5 s after a deadline. The launcher already has the
// request and gets the same code from this exit. MPI_Abort may not return while the launcher takes
// other ranks from SIGTERM to SIGKILL.
constexpr auto kAbortLimit = std::chrono::milliseconds(100);

void start_mpi() {
  prefer_open_mpi_settings();
  int is_initialized = 0;
  check_mpi(MPI_Initialized(&is_initialized), "MPI_Initialized");
  check(is_initialized == 0, "a second mpi::World in one process");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (provided < MPI_THREAD_MULTIPLE)
    throw Error(ExitCode::kUnavailable, "dist.mpi",
                fmt::format("MPI_Init_thread gave thread level {}, but Lockstep needs "
                            "MPI_THREAD_MULTIPLE ({}): use an "
                            "MPI built with thread support",
                            provided, MPI_THREAD_MULTIPLE));
}

OwnedComm copy_of_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return OwnedComm(copy);
}

std::string node_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  return {name.data(), static_cast<size_t>(length)};
}

/// Finds rank and node. Ranks that can share memory are on one node; each node's first rank counts
/// it.
ProcessInfo find_place() {
  ProcessInfo info;
  info.launcher = "mpi";
  info.node = node_name();
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &info.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &info.world_size), "MPI_Comm_size");
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, info.rank, MPI_INFO_NULL, &shared),
      "MPI_Comm_split_type");
  const OwnedComm node(shared);
  info.local_rank = node.rank();
  info.local_world_size = node.num_ranks();
  const int is_first = info.local_rank == 0 ? 1 : 0;
  check_mpi(MPI_Allreduce(&is_first, &info.num_nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD),
            "MPI_Allreduce");
  return info;
}

/// Limits the start of MPI, which waits forever for a rank that does not start or cannot be
/// reached.
class StartWatch {
 public:
  explicit StartWatch(const StartLimits& limits) {
    slow_.emplace(std::chrono::duration<double>(limits.slow_s),
                  [limits] { log::warning("dist.mpi", waits_text(limits.slow_s)); });
    if (limits.hang_s > 0)
      hang_.emplace(std::chrono::duration<double>(limits.hang_s), [limits] { give_up(limits); });
  }

 private:
  static std::string waits_text(double time_s) {
    return fmt::format(
        "process {} on {} has waited {} s for MPI to start: a rank has not come up, or the ranks' "
        "hosts do not reach one another; look for the rank without such a line",
        ::getpid(), host_name(), time_s);
  }
  [[noreturn]] static void give_up(const StartLimits& limits) {
    log::error("dist.mpi", waits_text(limits.hang_s) + "; --init-timeout gives it more time");
    static_cast<void>(log::flush(1.0));
    std::_Exit(static_cast<int>(ExitCode::kWatchdog));
  }

  std::optional<Deadline> slow_, hang_;
};

/// Ends this process. All ranks have announced their end, so nothing is lost.
[[noreturn]] void give_up_the_end(double limit_s) {
  log::error("dist.mpi",
             fmt::format("process {} on {} has waited {} s for MPI to end: another rank hangs, or "
                         "its host cannot be reached; this one ends without it",
                         ::getpid(), host_name(), limit_s));
  static_cast<void>(log::flush(1.0));
  std::_Exit(static_cast<int>(ExitCode::kWatchdog));
}

}  // namespace

World::World(const StartLimits& limits) {
  {
    const StartWatch watch(limits);
    start_mpi();
    info_ = find_place();
    notices_ = std::make_unique<NoticeBoard>(copy_of_world());
  }
  keeper_ = std::make_shared<WindowKeeper>(info_.local_world_size);
}

World::~World() {
  std::optional<Deadline> limit;
  if (end_limit_s_)
    limit.emplace(std::chrono::duration<double>(*end_limit_s_),
                  [limit_s = *end_limit_s_] { give_up_the_end(limit_s); });
  // Collective calls, in the same order on all ranks: windows first, then unread notices.
  keeper_.reset();
  try {
    notices_->settle();
  } catch (const Error& fault) {
    log::warning("dist.mpi", fault.what());
  }
  notices_.reset();
  static_cast<void>(MPI_Finalize());
}

std::unique_ptr<Communicator> World::make_communicator(const CommunicatorOptions& options) {
  return mpi::make_communicator(copy_of_world(), options, keeper_);
}

std::unique_ptr<Notice> World::make_notice() { return notices_->make_notice(); }

size_t World::num_windows() const { return keeper_->count(); }

void World::free_windows_from(size_t first) { keeper_->free_from(first); }

void World::abort(int exit_code) {
  static_cast<void>(log::flush(1.0));
  const Deadline end(kAbortLimit, [exit_code] { std::_Exit(exit_code); });
  static_cast<void>(MPI_Abort(MPI_COMM_WORLD, exit_code));
  std::_Exit(exit_code);  // MPI_Abort should not return
}

std::string World::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  return text.data();  // some versions count the closing zero in `length`
}

}  // namespace lockstep::dist::mpi
