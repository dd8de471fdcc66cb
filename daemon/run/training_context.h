#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/step_clock.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/save_schedule.h"
#include "daemon/config/run_config.h"
#include "daemon/run/find_data.h"
#include "daemon/state/checkpoint_metadata.h"
#include "data/loader.h"
#include "dist/process_info.h"
#include "dist/reducer/gradient_reducer.h"
#include "optim/ema.h"
#include "optim/flat_params.h"
#include "recal/scheduled_modifier_manager.h"
#include "train/evaluation/model_handler.h"
#include "train/loss/loss.h"
#include "train/loss/loss_scale.h"
#include "train/sync/local_steps.h"

namespace lockstep::daemon {

/// Sets the global batch for the world size that the run file expects. Used by tools, whose own
/// world has one rank.
void take_expected_world(RunConfig* config);

/// Returns a parameter's name in a checkpoint: blocks.0.conv.weight -> model/blocks/0/conv/weight.
std::string model_key(const std::string& param_name);

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
  const std::unique_ptr<dist::Communicator> alone;  ///< of the reducer; null unless local steps
  dist::GradientReducer reducer;
  const std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
  train::LossScale loss_scale;
  recal::ScheduledModifierManager recipe;
  std::optional<train::LocalSteps> local_steps;  ///< sync.sync_replicas: false; nullopt if one rank
                                                 ///< alone makes the steps of any run
  CheckpointMetadata facts;
  checkpoint::Saver saver;
  checkpoint::SaveSchedule schedule;

 private:
  StateList model_state();
};

}  // namespace lockstep::daemon
