#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/step_clock.h"
#include "checkpoint/checkpoint_options.h"
#include "checkpoint/save/saver.h"
#include "daemon/config/checkpoint_metadata.h"
#include "daemon/config/run_config.h"
#include "data/data_options.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "dist/reducer/gradient_reducer.h"
#include "optim/flat_params.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/evaluator.h"
#include "train/loss/loss.h"
#include "train/loss/teacher.h"
#include "train/step/step_modes.h"

/// Data, model, optimizer, recipe and saver of one rank, and the listing of the data files.
namespace lockstep::daemon {

/// Listing of both data sets, as in data::DatasetInputs::found.
struct FoundData {
  std::string train, eval;
  /// Set if the training data are not available (`lockstep eval`). Otherwise it follows from the
  /// data.
  std::optional<int64_t> steps_per_epoch = std::nullopt;
  /// Spec of the training data if they are not available: data::DatasetInputs::trained of both
  /// sets.
  data::SampleSpec trained = {};
};

/// Lists the data files on rank 0 and returns the result on every rank. Patterns are expanded, and
/// folders and stores listed, only once for all ranks. Collective. Throws rank 0's Error on every
/// rank.
FoundData find_data(const data::DataOptions& options, dist::Communicator& control);

/// Sets the global batch for the world size that the run file expects. Used by tools, whose own
/// world has one rank.
void take_expected_world(RunConfig* config);

/// Data, model, optimizer, recipe and saver of one rank. Members are built in this order from the
/// run file and destroyed in reverse. Building sends no messages, so an error is this rank's own.
class TrainingContext {
 public:
  /// Builds all parts. `save_comm` is used by the saver alone. The communicators must outlive the
  /// object. `found`: result of find_data(); if empty, the data sets look for their files
  /// themselves. Throws Error (kConfig, kInputMissing, kBadData).
  TrainingContext(const RunConfig& config, dist::Communicator& control,
                  dist::Communicator& data_comm, dist::Communicator& save_comm,
                  const FoundData& found = {});

  /// Returns the content of a checkpoint: model, optimizer, masks, positions, facts of the run. The
  /// entries refer to live memory of this object and are valid until the next step. With a sharded
  /// optimizer (sync.shard_optimizer) they contain this rank's shard.
  StateList state();
  /// Returns the entries that an evaluation reads: model, masks and quantization, the step.
  StateList inference_state();
  /// Returns the entries that updates change: model, optimizer, masks.
  StateList learned_state();
  /// Returns the number of steps of the entire run: as the recipe says, capped by train.max_steps
  /// and max_epochs.
  int64_t total_steps() const;
  int64_t num_parameters() const;  ///< elements
  /// True if evaluations and exports use the moving averages of the weights.
  bool evaluates_ema() const { return ema.is_on() && config.eval.use_ema.value_or(true); }
  int64_t num_prunable_weights() const;
  /// Describes a batch (a full one, or an epoch's last) that leaves one sample to a rank or
  /// micro-batch. `world_size` is the number of ranks. Empty if there is no such batch.
  std::string batch_with_single_sample(int64_t world_size) const;
  /// Returns the options of the threads that read data.eval; the defaults without data.eval.
  data::LoaderOptions eval_loader() const;
  /// True if the network's row in the table says so (model::ModelType::repeats_itself).
  bool repeats_itself() const;
  /// Returns the graph that records this rank's passes (train.cuda_graphs), or null. Call it before
  /// the first step, on all ranks. keeps_tensors: true if intermediate tensors of the network are
  /// read.
  std::shared_ptr<DeviceGraph> choose_graph(bool keeps_tensors);
  /// Returns the components of a trainer. Throws Error(kConfig) if the run has no end.
  train::TrainerParts trainer_parts();
  /// Returns DIR/model.ckpt, the prefix of the run's own checkpoints.
  std::string save_prefix() const;

  const RunConfig& config;
  dist::Communicator& control;
  dist::Communicator& gradients;
  const std::shared_ptr<data::Dataset> train_data;
  const std::unique_ptr<data::Dataset> eval_data;  ///< null: no evaluation
  const data::SampleSpec spec;                     ///< of both
  data::Sampler sampler;
  data::Loader loader;
  StepClock clock;
  const std::unique_ptr<model::Model> model;
  const train::ModelHandler handler;
  const train::Loss loss;
  optim::FlatParams flat_params;
  const std::unique_ptr<train::StepMode> mode;
  dist::SelfCommunicator alone;  ///< of the reducer in local steps
  dist::GradientReducer reducer;
  const std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
  train::LossScale loss_scale;
  recal::ScheduledModifierManager recipe;
  const std::unique_ptr<train::Teacher> teacher;  ///< null: the recipe does not distil
  CheckpointMetadata facts;
  std::string place;  ///< host and GPU, for messages about this rank
  checkpoint::Saver saver;
  checkpoint::SaveSchedule schedule;

 private:
  std::string why_not_recorded(bool keeps_tensors) const;
  StateList model_state();
};

}  // namespace lockstep::daemon
