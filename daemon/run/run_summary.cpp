#include "daemon/run/run_summary.h"

#include <fmt/format.h>

#include "base/files/files.h"
#include "base/log.h"
#include "train/summary.h"

// Only rank 0 writes the summary and the text file; every rank keeps its last page.
namespace lockstep::daemon {
namespace {

/// Word in summary.json and exit code of a run's end.
struct End {
  const char* reason;
  ExitCode code;
};

End end_of(train::RunEnd end) {
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

}  // namespace

ExitCode conclude(const train::RunResult& result, const TrainingContext& context,
                  const train::Recorder& recorder, const Telemetry& telemetry,
                  const std::optional<Resumed>& resumed) {
  const End end = end_of(result.end);
  if (context.control.rank() == 0) {
    const train::Summary summary{
        .exit_reason = end.reason,
        .exit_code = static_cast<int>(end.code),
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
        .metrics_address = telemetry.address()};
    train::write_summary(summary_path(context), summary);
    tell(summary, telemetry.origin(), summary_path(context));
    telemetry.write_textfile(context.config);
  }
  keep_last_page(telemetry, context);
  return end.code;
}

void conclude_failed(const std::exception& error, const TrainingContext& context) {
  if (context.control.rank() != 0) return;
  // Any other exception is a bug.
  const auto* known = dynamic_cast<const Error*>(&error);
  const ExitCode code = known != nullptr ? known->code() : ExitCode::kBug;
  try {
    train::write_summary(summary_path(context), {.exit_reason = "failed",
                                                 .exit_code = static_cast<int>(code),
                                                 .error = error.what(),
                                                 .steps = context.clock.step,
                                                 .epochs = context.clock.epoch(),
                                                 .world_size = context.control.world_size()});
  } catch (const std::exception& fault) {
    log::warning("run", fault.what());
  }
}

}  // namespace lockstep::daemon
