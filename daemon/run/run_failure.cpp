#include "daemon/run/run_failure.h"

#include <chrono>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "base/console.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/watch/failure.h"

namespace lockstep::daemon {
namespace {

/// Time for writing files after an error.
constexpr double kEnd_s = 5;

Failure failure_of(const std::string& message, ExitCode code, int64_t step,
                   const dist::ProcessInfo& process) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.rank = process.rank,
          .node = process.node,
          .pid = ::getpid(),
          .step = step,
          .exit_code = static_cast<int>(code),
          .message = message,
          .unix_time_s = std::chrono::duration<double>(now).count()};
}

}  // namespace

void tell_failure(std::exception& error, const TrainingContext& context,
                  const dist::ProcessInfo& process, const RankEvents& events) {
  auto* const known = dynamic_cast<Error*>(&error);
  const std::filesystem::path logs = context.config.run.project().logs();
  const Failure own = failure_of(error.what(), known != nullptr ? known->code() : ExitCode::kBug,
                                 context.clock.step, process);
  write_failure(logs, own);
  if (own.exit_code == static_cast<int>(ExitCode::kWatchdog)) events.write();
  const bool is_shared = known != nullptr && known->on_every_rank();
  // Only an error of this rank alone can be the consequence of another rank's error.
  const std::optional<Failure> cause = is_shared ? std::nullopt : cause_of(logs, own);
  if (cause && known != nullptr)
    known->append(fmt::format("; before that rank {} on {} ended with {}: {}", cause->rank,
                              cause->node, cause->exit_code, cause->message));
  // One box per cause: the rank with the cause prints its own.
  if (cause || (is_shared && process.rank != 0)) return;
  log::print(boxed(own));
}

std::unique_ptr<Deadline> limit_the_end(const std::exception& error, const RunConfig& config,
                                        const SessionWorld& world) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool is_shared = known != nullptr && known->on_every_rank();
  const Error own = known != nullptr ? *known : Error(ExitCode::kBug, "bug", error.what());
  // A shared error: all ranks wait for a save in progress. An error of this rank alone ends the
  // others, so nothing is awaited.
  const double limit_s = kEnd_s + (is_shared ? config.checkpoint.timeout_s : 0);
  return std::make_unique<Deadline>(std::chrono::duration<double>(limit_s), [own, limit_s, &world] {
    log::error("lockstepd",
               fmt::format("the end of the run takes more than {} s: a disk may hang", limit_s));
    if (world.abort) world.abort(own);
    ::_exit(static_cast<int>(own.code()));
  });
}

WatchdogActions actions_of(const RunConfig& config, const SessionWorld& world,
                           const Requests& requests) {
  return {.before_abort =
              [&](const std::string& what) {
                const Failure own =
                    failure_of(what, ExitCode::kWatchdog, requests.step(), world.process);
                write_failure(config.run.project().logs(), own);
                log::print(boxed(own));
              },
          .abort =
              [&](const std::string& what) {
                const Error error(ExitCode::kWatchdog, "watchdog", what);
                if (world.abort) world.abort(error);
                log::error("watchdog", what);
                // No destructors: other threads may hold locks, and the main thread hangs.
                ::_exit(static_cast<int>(ExitCode::kWatchdog));
              }};
}

}  // namespace lockstep::daemon
