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

/// A tool is a world of one; batches are counted for the world that the run file expects.
void take_expected_world(RunConfig* config);

/// A parameter's name in a save: blocks.0.conv.weight -> model/blocks/0/conv/weight.
std::string model_key(const std::string& param_name);

/// Data, model, optimizer, recipe and saver of one rank, built in this order from the run file,
/// gone in reverse. No message is sent while it is built; a fault is this rank's own.
class TrainingContext {
 public:
  /// `save_comm` is the saver's alone. The communicators must outlive it. `found`: what
  /// find_data() gave; empty, data sets look for their files themselves. Throws Error (kConfig,
  /// kInputMissing, kBadData).
  TrainingContext(const RunConfig& config, dist::Communicator& control,
                  dist::Communicator& data_comm, dist::Communicator& save_comm,
                  const FoundData& found = {});

  /// What a save holds: model, optimizer, masks, positions, facts of the run. Live memory of this
  /// object, until the next step; of an optimizer that is divided (sync.shard_optimizer) what this
  /// rank owns.
  StateList state();
  /// The part of it that an evaluation takes: model, masks and quantization, the step.
  StateList inference_state();
  /// What updates change: model, optimizer, masks.
  StateList learned_state();
  /// Steps of the whole run: what the recipe says, capped by train.max_steps and max_epochs.
  int64_t total_steps() const;
  int64_t num_parameters() const;  ///< elements
  /// Whether evaluations and exports take the moving averages of the weights.
  bool evaluates_ema() const { return ema.is_on() && config.eval.use_ema.value_or(true); }
  int64_t num_prunable_weights() const;
  /// Says which batch, whole or an epoch's last, leaves one sample to a rank of `world_size`, or to
  /// one of its micro-batches; empty if none does.
  std::string batch_with_single_sample(int64_t world_size) const;
  /// Options of the threads that read data.eval; the defaults where there is none.
  data::LoaderOptions eval_loader() const;
  /// Whether the network's row says so (model::ModelType::repeats_itself).
  bool repeats_itself() const;
  /// What records this rank's passes (train.cuda_graphs), or null; before the first step, on all
  /// ranks. keeps_tensors: somebody reads what goes through the network.
  std::shared_ptr<DeviceGraph> choose_graph(bool keeps_tensors);
  /// DIR/model.ckpt of the run's own saves.
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
  const std::unique_ptr<dist::Communicator> alone;  ///< local steps: the reducer's; else null
  dist::GradientReducer reducer;
  const std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
  train::LossScale loss_scale;
  recal::ScheduledModifierManager recipe;
  std::optional<train::LocalSteps> local_steps;  ///< sync.sync_replicas: false; null where one
                                                 ///< rank alone makes the steps of any run
  CheckpointMetadata facts;
  checkpoint::Saver saver;
  checkpoint::SaveSchedule schedule;

 private:
  StateList model_state();
};

}  // namespace lockstep::daemon
