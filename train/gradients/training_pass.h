#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/step_clock.h"
#include "dist/reducer/gradient_reducer.h"
#include "metrics/samples.h"
#include "model/model.h"
#include "optim/flat_params.h"
#include "train/gradients/batch_statistics.h"
#include "train/gradients/params_watch.h"
#include "train/gradients/step_tensors.h"
#include "train/loss/loss.h"

namespace lockstep::train {

/// The sum of the losses of this rank's samples, here or, where a device may still compute it,
/// there (float64 []).
struct LossSum {
  double here = 0;
  at::Tensor there = {};
};

/// A rank's samples on the device of the weights, and what each loss is multiplied by before
/// backward (float32 []). `first_sample`: place of the first in the global batch.
struct PassInputs {
  at::Tensor inputs_BX, targets_BY;
  int64_t first_sample = 0;
  at::Tensor weight;
};

/// What the host may wait for within a pass.
enum class HostWaits {
  kForLosses,  ///< the device too: it reads each loss
  kForPeers,   ///< weights that are still on their way from other ranks
  kForNothing  ///< while a device records (base/device/device_graph.h); such weights are there
};

/// Forward, loss and backward of this rank's samples, by micro-batch.
class TrainingPass {
 public:
  /// All outlive the pass. tensors: where outputs are left; may be null.
  struct Parts {
    model::Model& model;
    optim::FlatParams& flat_params;
    dist::GradientReducer& reducer;
    const Loss& loss;
    const BatchStatistics& statistics;
    const StepClock& clock;
    StepTensors* tensors = nullptr;
    ParamsWatch* watch = nullptr;    ///< of a user's network; null: of another
    std::string precision = "fp32";  ///< of the network's own computing (Autocast)
    int64_t num_micro_batches = 1;   ///< into which the samples are cut
  };
  explicit TrainingPass(Parts parts) : parts_(std::move(parts)) {}

  /// Weighted gradients of these samples in the flat buffers, and the sum of their losses.
  /// completes: they are the last that the update waits for; the reducer is told so before the
  /// backward pass of their last micro-batch. Forward may run backward passes of its own.
  LossSum run(const PassInputs& inputs, const std::optional<dist::StepRequests>& completes,
              HostWaits waits, metrics::PhaseSeconds* phases);

 private:
  at::Tensor sum_of_losses(const at::Tensor& inputs_BX, const at::Tensor& targets_BY,
                           int64_t first_sample);
  void backward(const at::Tensor& loss, const at::Tensor& weight);

  Parts parts_;
};

}  // namespace lockstep::train
