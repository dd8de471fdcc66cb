#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/step_clock.h"
#include "base/tensors/params.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "dist/reducer/gradient_reducer.h"
#include "model/model.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/scheduled_modifier_manager.h"

namespace lockstep {
class DeviceGraph;
class StopRequest;
}  // namespace lockstep

namespace lockstep::train {

class Loss;
class LossScale;
struct LossSum;
struct PassRequest;
class StepLimits;
struct StepReport;
class StepTensors;
class Teacher;
struct TrainerParts;
class TrainingPass;

/// Way in which a step ends. Equal on all ranks; in a local step it is this rank's.
enum class StepEnd {
  kUpdated,  ///< the update counts
  kSkipped,  ///< the update is not finite; the next step takes the next samples
  kLeftOut,  ///< a rank has no samples because of a stop; the next step takes the same samples
};

/// Part of the training whose state changes in each step. The trainer calls all parts in one fixed
/// order: on_recipe_change(), begin_step(), agree(), end_step(). Each begin_step() is followed by
/// exactly one end_step(), unless the run ends by an error. Every method may be collective.
class StepPart {
 public:
  virtual ~StepPart() = default;
  /// Adapts to the recipe's changes. Called before each step, also without changes, and at close().
  virtual void on_recipe_change(const recal::AppliedActions&) {}
  /// Begins a step, before its first forward pass.
  virtual void begin_step() {}
  /// Makes the exchanges that end_step() needs, before the weights change: so a rank that is lost
  /// in one leaves weights that can go back (Trainer::undo_step()). Changes nothing that end_step()
  /// could not revert. end_step() calls it if the caller has not.
  virtual void agree(StepEnd, int64_t /*num_samples*/) {}
  /// Keeps the step's effects if `end` is kUpdated, else reverts them and sends nothing.
  /// num_samples: of this rank.
  virtual void end_step(StepEnd end, int64_t num_samples) = 0;
};

/// Strategy by which the ranks make a step together (train/step/step_modes.h).
class StepMode {
 public:
  virtual ~StepMode() = default;
  StepMode(const StepMode&) = delete;
  StepMode& operator=(const StepMode&) = delete;

  /// Communicator for agreement within a step; of a single rank if steps are local.
  virtual dist::Communicator& peers() { return all_; }
  /// True if each rank updates its own weights, without messages.
  virtual bool is_local() const { return false; }
  /// True if the batch is always cut into kElasticShards passes.
  virtual bool is_elastic() const { return false; }
  /// Computes the gradients of this rank's samples and returns the sum of their losses: one pass.
  virtual LossSum compute_gradients(const data::Batch& batch, const PassRequest& request,
                                    TrainingPass& pass);
  /// Returns this rank's statistics for the step's own reduction.
  virtual dist::LocalStepStats contribute(const dist::LocalStepStats& local) { return local; }
  /// Completes a step after its update, with the clock advanced. Collective.
  virtual void join(const TrainerParts&, StepLimits*, StepReport*) {}

 protected:
  /// all: communicator of all ranks; outlives the mode.
  explicit StepMode(dist::Communicator& all) : all_(all) {}

  dist::Communicator& all_;
};

/// Components of a trainer; all outlive it.
struct TrainerParts {
  dist::Communicator& control;
  data::Loader& loader;
  model::Model& model;
  optim::FlatParams& flat_params;
  dist::GradientReducer& reducer;  ///< with local steps: of this rank alone
  optim::Optimizer& optimizer;
  const optim::OptimizerOptions& optimizer_options;
  recal::ScheduledModifierManager& recipe;
  const Loss& loss;
  LossScale& loss_scale;
  optim::Ema& ema;
  StepClock& clock;
  StepMode& mode;
  int64_t total_steps = 0;         ///< of the entire run
  int64_t bucket_bytes = 4194304;  ///< size of gradient buckets
  /// Function called before weights, moments or masks change, since a save may still be reading
  /// them. May be empty.
  std::function<void()> before_changes = {};
  int64_t max_skipped_samples = 0;  ///< limit on damaged samples of an epoch, over all ranks
  StepTensors* tensors = nullptr;   ///< receives the tensors of each step; null: not kept
  Teacher* teacher = nullptr;       ///< of a recipe that distils; null otherwise
  bool teacher_is_copy = false;     ///< the teacher copies the network where distillation begins
  StopRequest* stop = nullptr;  ///< ends waits for data; null, or local steps: waits have no end
  double data_patience_s = 1;   ///< seconds before which such a wait is not ended
  std::shared_ptr<DeviceGraph> graph = nullptr;  ///< records passes; null: none are recorded
  std::vector<StepPart*> more_parts = {};        ///< called after the trainer's own parts
  /// True if the step must be able to go back while ranks exchange anything (undo_step()).
  bool may_lose_ranks = false;
  int64_t audit_every = 0;  ///< steps between audits (train/step/audit.h); 0: none
  std::string place = {};   ///< host and processor of this rank, for the audit's messages

  /// True if the host may run ahead of a GPU: there is one, and the host needs no loss in the step.
  bool runs_ahead() const {
    return !flat_params.device().is_cpu() && !mode.is_local() && !mode.is_elastic();
  }
};

}  // namespace lockstep::train
