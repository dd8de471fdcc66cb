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

/// Sum of the losses of this rank's samples: on the host, or (if a device may still compute it) on
/// the device, float64 [].
struct LossSum {
  double here = 0;
  at::Tensor there = {};
};

/// Samples of a rank on the device of the weights, and the factor on each loss before backward
/// (float32 []). `first_sample`: index of the first in the global batch.
struct PassInputs {
  at::Tensor inputs_BX, targets_BY;
  int64_t first_sample = 0;
  at::Tensor weight;
};

/// Waits that the host may make within a pass.
enum class HostWaits {
  kForLosses,  ///< for the device too, to read each loss
  kForPeers,   ///< for weights that are still in transit from other ranks
  kForNothing  ///< while a graph is captured (base/device/device_graph.h); weights are complete
};

/// Forward, loss and backward of this rank's samples, by micro-batch.
class TrainingPass {
 public:
  /// All references outlive the pass. tensors: receives the outputs; may be null.
  struct Parts {
    model::Model& model;
    optim::FlatParams& flat_params;
    dist::GradientReducer& reducer;
    const Loss& loss;
    const BatchStatistics& statistics;
    const StepClock& clock;
    StepTensors* tensors = nullptr;
    ParamsWatch* watch = nullptr;    ///< for a user's network; null: for other networks
    std::string precision = "fp32";  ///< type of the network's computation (Autocast)
    int64_t num_micro_batches = 1;   ///< number of parts of the samples
  };
  explicit TrainingPass(Parts parts) : parts_(std::move(parts)) {}

  /// Computes weighted gradients of these samples in the flat buffers, and returns the sum of their
  /// losses. completes: these are the last samples of the update; the reducer is prepared before
  /// the backward pass of the last micro-batch. Forward may run backward passes of its own.
  LossSum run(const PassInputs& inputs, const std::optional<dist::StepRequests>& completes,
              HostWaits waits, metrics::PhaseSeconds* phases);

 private:
  at::Tensor sum_of_losses(const at::Tensor& inputs_BX, const at::Tensor& targets_BY,
                           int64_t first_sample);
  void backward(const at::Tensor& loss, const at::Tensor& weight);

  Parts parts_;
};

}  // namespace lockstep::train
