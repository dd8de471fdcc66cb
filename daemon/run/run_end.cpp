#include "daemon/run/run_end.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/threads.h"
#include "daemon/control/failure.h"
#include "dist/process_info.h"
#include "train/records.h"

// Summary of a run, and the handling of its error. Only rank 0 writes the summary and the text
// file; every rank keeps its last page.
namespace lockstep::daemon {
namespace {

/// Returns the word in summary.json and the exit code of a run's end.
std::pair<const char*, ExitCode> end_of(train::RunEnd end) {
  switch (end) {
    case train::RunEnd::kFinished:
      return {"finished", ExitCode::kDone};
    case train::RunEnd::kStopped:
      return {"stopped", ExitCode::kStopped};
    case train::RunEnd::kEnded:
      return {"ended", ExitCode::kStopped};
    case train::RunEnd::kNotSaved:
      return {"not_saved", ExitCode::kIo};
    case train::RunEnd::kStoppedEarly:
      return {"stopped_early", ExitCode::kDone};
    case train::RunEnd::kNotExported:
      return {"not_exported", ExitCode::kIo};
  }
  return {"", ExitCode::kBug};
}

std::filesystem::path summary_path(const TrainingContext& context) {
  return context.config.run.project().summary();
}

/// Writes the last page, for people and for node exporter's textfile collector. A failure is only a
/// warning: the run itself has succeeded.
void keep_last_page(const Telemetry& telemetry, const TrainingContext& context) {
  const auto path =
      context.config.run.project().logs() / fmt::format("rank{}.prom", context.control.rank());
  try {
    files::write_atomically(path, telemetry.page());
  } catch (const Error& fault) {
    log::warning("metrics", fault.what());
  }
}

/// Logs the end of the run in two lines.
void tell(const train::Summary& summary, const std::string& origin,
          const std::filesystem::path& path) {
  std::string tested;
  if (summary.eval && summary.eval->accuracy)
    tested = fmt::format(", test accuracy {:.4f}", *summary.eval->accuracy);
  if (summary.eval) tested += fmt::format(", test loss {:.4f}", summary.eval->loss);
  log::info("run", fmt::format("{} after {} steps ({:.2f} epochs){}, sparsity {:.4f}, {:.0f} "
                               "samples/s",
                               summary.exit_reason, summary.steps, summary.epochs, tested,
                               summary.sparsity, summary.samples_per_second));
  log::info("run", fmt::format("checkpoint {}, metrics {}, summary {}",
                               summary.checkpoint.empty() ? "none" : summary.checkpoint,
                               origin.empty() ? "off" : origin + "/metrics", path.string()));
}

/// Writes the summary of a run that ended with an error: exit_reason "failed", the code, the
/// message and how far the run came. Never throws.
void conclude_failed(const std::exception& error, const TrainingContext& context) {
  if (context.control.rank() != 0) return;
  try {
    train::write_summary(summary_path(context),
                         {.exit_reason = "failed",
                          .exit_code = static_cast<int>(known_error(error).code()),
                          .error = error.what(),
                          .steps = context.clock.step,
                          .epochs = context.clock.epoch(),
                          .world_size = context.control.world_size()});
  } catch (const std::exception& fault) {
    log::warning("run", fault.what());
  }
}

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

/// Writes this rank's failure file for the other ranks (daemon/control/failure.h) and adds the
/// cause that other ranks have written to the error. Prints a box for people: rank 0 for an error
/// that all ranks share, otherwise the failing rank. If a rank hangs, writes the newest spans of
/// all ranks too.
void report_failure(std::exception& error, const TrainingContext& context,
                    const dist::ProcessInfo& process, const RankEvents& events) {
  auto* const known = dynamic_cast<Error*>(&error);
  const std::filesystem::path logs = context.config.run.project().logs();
  const Failure own =
      failure_of(error.what(), known_error(error).code(), context.clock.step, process);
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

/// Returns a deadline for the work after a failure: files are written and a save in progress ends.
/// Ends all ranks if that work hangs, since the disk may be the cause. Keep it until then; all
/// arguments must outlive it.
std::unique_ptr<Deadline> limit_shutdown(const std::exception& error, const RunConfig& config,
                                         const SessionWorld& world) {
  const Error own = known_error(error);
  // A shared error: all ranks wait for a save in progress. An error of this rank alone ends the
  // others, so nothing is awaited.
  const double limit_s = kEnd_s + (own.on_every_rank() ? config.checkpoint.timeout_s : 0);
  return std::make_unique<Deadline>(std::chrono::duration<double>(limit_s), [own, limit_s, &world] {
    log::error("lockstepd",
               fmt::format("the end of the run takes more than {} s: a disk may hang", limit_s));
    if (world.abort) world.abort(own);
    ::_exit(static_cast<int>(own.code()));
  });
}

/// Ends a save in progress before the run folder is unlocked.
void abort_running_save(const std::exception& error, TrainingContext& context,
                        const SessionWorld& world) {
  const Error known = known_error(error);
  // The saver's thread may wait for a hanging rank as long as saves may take.
  if (!known.on_every_rank() && context.saver.is_under_way() && world.abort) world.abort(known);
  context.saver.set_while_waiting({});  // the error's exit code remains the run's
  context.saver.join();
}

/// Serves the state "failed" until it is scraped. Only if all ranks end alike: a rank with an error
/// of its own ends the others at once.
void linger_failed(const std::exception& error, Telemetry& telemetry, const RunConfig& config,
                   const StopRequest& requests) {
  if (!known_error(error).on_every_rank()) return;
  telemetry.note_final();
  telemetry.linger(config.metrics, requests);
}

}  // namespace

Error known_error(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? *known : Error(ExitCode::kBug, "bug", error.what());
}

ExitCode conclude(const train::RunResult& result, const TrainingContext& context,
                  const train::Recorder& recorder, const Telemetry& telemetry,
                  const std::optional<Resumed>& resumed) {
  const auto [reason, code] = end_of(result.end);
  if (context.control.rank() == 0) {
    const train::Summary summary{
        .exit_reason = reason,
        .exit_code = static_cast<int>(code),
        .steps = context.clock.step,
        .epochs = context.clock.epoch(),
        .world_size = context.control.world_size(),
        .skipped_steps = recorder.num_skipped(),
        .train_loss = recorder.last_loss(),
        .eval = result.eval,
        .sparsity = context.recipe.sparsity(),
        .num_prunable_weights = context.num_prunable_weights(),
        .samples_per_second = recorder.samples_per_second(),
        .checkpoint = result.checkpoint,
        .resumed_from_step = resumed ? std::optional(resumed->step) : std::nullopt,
        .parameters_sha256 = train::parameters_sha256(context.model->params()),
        // Averages are what was evaluated, so they have their own digest.
        .evaluated_sha256 = result.eval && context.evaluates_ema()
                                ? train::parameters_sha256(context.ema.params())
                                : "",
        .metrics_address = telemetry.address(),
        .time = recorder.run_time()};
    train::write_summary(summary_path(context), summary);
    tell(summary, telemetry.origin(), summary_path(context));
    telemetry.write_textfile(context.config);
  }
  keep_last_page(telemetry, context);
  return code;
}

void end_failed(std::exception& error, TrainingContext& context, Telemetry& telemetry,
                const SessionWorld& world, const RankEvents& events, const StopRequest& requests) {
  const RunConfig& config = context.config;
  // The deadline comes first, since each of the next steps may hang on the disk.
  const auto limit = limit_shutdown(error, config, world);
  telemetry.metrics().set_state(metrics::RunState::kFailed);
  telemetry.health().note_state(metrics::RunState::kFailed);
  report_failure(error, context, world.process, events);
  conclude_failed(error, context);
  if (context.control.rank() == 0) telemetry.write_textfile(config);
  abort_running_save(error, context, world);
  linger_failed(error, telemetry, config, requests);
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
