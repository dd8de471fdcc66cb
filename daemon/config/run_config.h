#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "checkpoint/checkpoint_options.h"
#include "coord/callback_types.h"
#include "daemon/config/overrides.h"
#include "daemon/config/run_options.h"
#include "data/data_options.h"
#include "dist/reduction_modes.h"
#include "infer/inferer_options.h"
#include "metrics/metrics_options.h"
#include "model/networks/model_table.h"
#include "recal/schedule/recipe.h"
#include "train/eval_options.h"
#include "train/hook.h"
#include "train/loss/loss.h"
#include "train/profiler_hook.h"

/// Run file as a whole: its content, its reader, and the list of its keys.
namespace lockstep::daemon {

/// Content of the whole run file: one options struct per section. Plain values; nothing is started.
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
  std::vector<train::MakeHook> hooks;  ///< of the estimator's code
  std::optional<train::ProfileOptions> profile;
  std::string trainer_sha256;     ///< of the file that `trainer` names; empty: none
  infer::InfererSection inferer;  ///< for `lockstep infer`; a training run ignores it

  /// All settings as sorted "path=value" lines, with the recipe's digest. Must be equal on all
  /// ranks.
  std::vector<std::string> settings;
  /// Warnings that are not faults: mistyped variables of the environment.
  std::vector<std::string> warnings;
  /// Notes about settings without effect: flags of another optimizer.
  std::vector<std::string> notes;
  /// Value of every flag, for flags::Frozen.
  flags::Values flag_texts;
  std::string digest() const;  ///< SHA-256 of the settings
};

/// Reads the run file. With an empty path, reads a run that flags alone describe (`preset:
/// estimator`). The environment overrides the file; `overrides` override both.
///
/// All faults go to `faults` in one pass; use the result only if there are none. Without a recipe,
/// train.max_steps or max_epochs is required. Throws Error(kInputMissing) for a missing file.
/// Throws Error(kUsage) for a wrong flag, or for a missing flag in a run without a file.
///
/// `text`: content of the file if already known. The file is then not opened, but relative paths
/// still start at its folder. `needs_train_data`: false if data.train may be absent because it is
/// never read.
RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides,
                          Diagnostics* faults, const std::optional<std::string>& text = {},
                          bool needs_train_data = true);

/// Does the same, but throws all faults as one Error(kConfig).
RunConfig require_run_config(const std::string& path, const std::vector<Override>& overrides,
                             const std::optional<std::string>& text = {},
                             bool needs_train_data = true);

/// Returns every key of the run file with type, default, range and meaning.
std::vector<FieldDoc> run_file_fields();
/// Returns the same, with one entry per meaning of a key: model.layers of mlp and of gpt.
std::vector<FieldDoc> run_file_meanings();

// Parts that are shared by reading a run file and by listing its keys.

/// Reads every section. Unknown keys of the top level are left to in->done(). `needs_train_data`:
/// see load_run_config().
RunConfig read_sections(ConfigReader* in, bool needs_train_data = true);

/// Registers the optional rows of the tables: object stores, Python, plug-ins. Call once per
/// process.
void add_all_types();

/// Resets all state that lives as long as the process, as if the process were new. Used before
/// another job, and before a run whose file was read ahead. Tables keep the rows that they had at
/// the first call. Call it on the main thread while no job runs.
void begin_job();

/// Returns the keys that are read with these settings, each with its default. These are the keys of
/// the chosen optimizer, for example, and not of the others.
std::vector<FieldDoc> fields_read_with(const YamlDocument& document);

}  // namespace lockstep::daemon
