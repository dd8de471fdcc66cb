// lockstep-tensors: the commands of `lockstep` that need LibTorch. `lockstep` executes it.

#include "base/process.h"
#include "cli/command_line.h"
#include "cli/curves.h"
#include "daemon/config/estimator_flags.h"
#include "launch/stop_signals.h"
#include "metrics/series_table.h"
#include "python/interpreter.h"

namespace {

namespace checkpoint = lockstep::checkpoint;
namespace daemon = lockstep::daemon;

daemon::CommandResult submit(const daemon::SubmitOptions& options) {
  daemon::check_before_queue(options.config_file, daemon::overrides_of(options.above));
  return daemon::submit_command(options);
}

daemon::CommandResult reference(daemon::Reference what) {
  switch (what) {
    case daemon::Reference::kMetrics:
      return {lockstep::metrics::series_reference(), 0};
    case daemon::Reference::kFlags:
      return {daemon::flags_reference(), 0};
    default:
      return {daemon::run_file_reference(), 0};
  }
}

// Every member is set: this program has all commands.
constexpr daemon::TensorCommands kCommands{.run = daemon::run_command,
                                           .launch_slurm = daemon::slurm_command,
                                           .launch_kubernetes = daemon::kubernetes_command,
                                           .doctor = daemon::doctor_command,
                                           .submit = submit,
                                           .read_control = daemon::read_control,
                                           .check = daemon::check_command,
                                           .plan = daemon::plan_command,
                                           .plan_scale = daemon::scale_command,
                                           .curves = daemon::curves_command,
                                           .eval = daemon::eval_command,
                                           .infer = daemon::infer_command,
                                           .reference = reference,
                                           .list_saves = checkpoint::list_saves,
                                           .show_save = checkpoint::show_save,
                                           .verify_saves = checkpoint::verify_saves,
                                           .latest_save = checkpoint::latest_save,
                                           .diff_saves = checkpoint::diff_saves,
                                           .collect_garbage = checkpoint::collect_garbage,
                                           .export_save = daemon::export_command};

}  // namespace

int main(int argc, char** argv) {
  if (lockstep::launch::is_supervisor(argc, argv)) lockstep::launch::end_at_stop_signals();
  const int exit_code = daemon::run_command_line(kCommands, argc, argv);
  lockstep::python::flush();
  lockstep::end_process(exit_code);
}
