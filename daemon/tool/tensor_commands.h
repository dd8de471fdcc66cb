#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "checkpoint/inspect/diff.h"
#include "checkpoint/inspect/gc.h"
#include "checkpoint/inspect/inspect.h"
#include "daemon/commands.h"
#include "daemon/control/ctl_command.h"
#include "daemon/doctor/doctor_command.h"
#include "daemon/evaluation/eval_command.h"
#include "daemon/exports/export.h"
#include "daemon/inference/infer_command.h"
#include "daemon/launching/kubernetes_command.h"
#include "daemon/launching/run_command.h"
#include "daemon/launching/slurm_command.h"
#include "daemon/plan/scale_command.h"
#include "daemon/serve/queue_client.h"

namespace CLI {
class App;
}

namespace lockstep::daemon {

using Command = std::function<CommandResult()>;
using InspectSave = checkpoint::Answer (*)(const std::string& where,
                                           const checkpoint::InspectOptions& options);

/// Thrown by a command of TensorCommands that this program does not have.
struct NeedsTensors : std::logic_error {
  NeedsTensors() : std::logic_error("a command of TensorCommands is missing") {}
};

template <typename Result, typename... Arguments>
Result not_here(Arguments...) {
  throw NeedsTensors();
}

enum class Reference { kRunFile, kFlags, kMetrics };

/// Commands of `lockstep` that need LibTorch, which takes a quarter of a second to load. They read
/// a run file, whose tables contain networks and data sets, or checkpoints. The program `lockstep`
/// itself has none of them. For these commands it executes `lockstep-tensors`
/// (tool/tensors_main.cpp), which has all.
struct TensorCommands {
  CommandResult (*run)(const RunCommandOptions&) = not_here;
  CommandResult (*launch_slurm)(const SlurmCommandOptions&) = not_here;
  CommandResult (*launch_kubernetes)(const KubernetesCommandOptions&) = not_here;
  CommandResult (*doctor)(const DoctorOptions&) = not_here;
  CommandResult (*submit)(const SubmitOptions&) = not_here;
  ReadControl read_control = not_here;  ///< for `ctl` with a run file
  CommandResult (*check)(const std::string&, const std::vector<Override>&) = not_here;
  CommandResult (*plan)(const PlanOptions&) = not_here;
  CommandResult (*plan_scale)(const ScaleOptions&) = not_here;
  CommandResult (*curves)(const std::filesystem::path&, const std::string&) = not_here;
  CommandResult (*eval)(const EvalCommandOptions&) = not_here;
  CommandResult (*infer)(const InferCommandOptions&) = not_here;
  CommandResult (*reference)(Reference) = not_here;
  InspectSave list_saves = not_here, show_save = not_here;
  InspectSave verify_saves = not_here, latest_save = not_here;
  checkpoint::Answer (*diff_saves)(const std::string&, const std::string&,
                                   const checkpoint::DiffOptions&) = not_here;
  checkpoint::Answer (*collect_garbage)(const std::string&,
                                        const checkpoint::GcOptions&) = not_here;
  CommandResult (*export_save)(const ExportOptions&) = not_here;
};

}  // namespace lockstep::daemon
