#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "checkpoint/checkpoint_options.h"
#include "coord/callback_types.h"
#include "daemon/config/gpu_options.h"
#include "daemon/config/overrides.h"
#include "daemon/config/run_options.h"
#include "daemon/watch/watchdog_options.h"
#include "data/data_options.h"
#include "dist/sync_options.h"
#include "infer/inferer_section.h"
#include "metrics/metrics_options.h"
#include "model/model.h"
#include "model/networks/model_table.h"
#include "optim/optimizer.h"
#include "recal/timeline/recipe.h"
#include "train/evaluation/eval_options.h"
#include "train/evaluation/publish_options.h"
#include "train/hooks/hook.h"
#include "train/hooks/profile_options.h"
#include "train/step/train_options.h"

namespace lockstep::daemon {

/// The whole run file, read: one options struct for each folder's section. Plain values; nothing is
/// started.
struct RunConfig {
  std::string file;
  RunOptions run;
  PreemptionOptions preemption;
  ControlOptions control;
  WatchdogOptions watchdog;
  model::ModelOptions model;
  data::DataOptions data;
  train::TrainOptions train;
  train::EvalOptions eval;
  train::PublishOptions publish;  ///< section `export`
  optim::OptimizerOptions optimizer;
  dist::SyncOptions sync;
  GpuOptions gpu;
  recal::Recipe recipe;
  checkpoint::CheckpointOptions checkpoint;
  metrics::MetricsOptions metrics;
  metrics::SummaryOptions summary;
  std::vector<coord::WantedCallback> callbacks;
  std::vector<train::MakeHook> hooks;  ///< of the estimator
  std::optional<train::ProfileOptions> profile;
  std::string trainer_sha256;     ///< of the file that `trainer` names; empty: it is a section
  infer::InfererSection inferer;  ///< of `lockstep infer`; a run does nothing with it

  /// Every setting as "path=value", sorted, with the recipe's digest: must be equal on all ranks.
  std::vector<std::string> settings;
  /// What a person should know although it is no fault: mistyped variables of the environment.
  std::vector<std::string> warnings;
  /// What has no effect beside what else is chosen: flags of another optimizer.
  std::vector<std::string> notes;
  /// Every flag's value, for flags::Frozen.
  flags::Values flag_texts;
  std::string digest() const;  ///< SHA-256 of the settings
};

/// Reads the run file, or, with an empty path, a run that flags alone describe (`preset:
/// estimator`); the environment stands above the file, `overrides` above both. Every fault goes to
/// `faults`, in one pass; the result may be used only if there is none. Throws Error(kInputMissing)
/// for a missing file, Error(kUsage) for a flag that is wrong or that a run without a file lacks.
/// Without a recipe, train.max_steps or max_epochs is required. `text`: what the file says, where
/// that is known already; it is not opened then, but what lies beside it is found.
/// `needs_train_data`: false where data.train may be left out, as nothing of it is read.
RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides,
                          Diagnostics* faults, const std::optional<std::string>& text = {},
                          bool needs_train_data = true);

/// Every key of the run file with type, default, range and meaning.
std::vector<FieldDoc> run_file_fields();
/// The same, a key again for each other meaning that types give it: model.layers of mlp and of gpt.
std::vector<FieldDoc> run_file_meanings();

}  // namespace lockstep::daemon
