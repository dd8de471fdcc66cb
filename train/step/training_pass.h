#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/step_clock.h"
#include "base/tensors/params.h"
#include "dist/reducer/gradient_reducer.h"
#include "dist/reducer/overlap.h"
#include "metrics/samples.h"
#include "model/model.h"
#include "optim/flat_params.h"
#include "train/step/loss.h"
#include "train/step/module_buffers.h"
#include "train/step/step_report.h"

/// Forward, loss and backward of a rank's samples, with autocast and observation of the network.
namespace lockstep::train {

/// Enables LibTorch's autocast on this thread for its lifetime: layers compute in a narrower type
/// if that is safe (linear layers, convolutions; LibTorch's lists decide). Weights stay float32.
/// fp32: no effect.
///
/// Use it around forward only: backward computes in the types that forward chose.
class Autocast {
 public:
  /// precision: fp32 | bf16 | fp16.
  Autocast(const std::string& precision, at::Device device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool is_on_;
  const at::DeviceType device_type_;
  bool was_enabled_ = false;
  at::ScalarType dtype_before_ = at::kFloat;
};

/// Observes how a user's network treats its trained parameters in a step: which of them backward
/// reaches, and whether forward writes one. Call it while no forward or backward pass runs.
class ParamsWatch {
 public:
  /// The table must outlive this.
  explicit ParamsWatch(const ParamTable& params);
  ParamsWatch(const ParamsWatch&) = delete;
  ParamsWatch& operator=(const ParamsWatch&) = delete;

  /// Adapts to a new set of parameters that require a gradient.
  void follow();
  /// Marks all parameters as not reached.
  void begin_step();
  /// Marks every parameter as reached, for a step without samples, whose gradients are zeros.
  void take_all_as_reached();
  void before_forward();
  void after_forward();

  /// Number of trained parameters that no backward pass since begin_step() has reached.
  int64_t num_missing() const;
  /// Flags by parameter, int64 [P]: 1 for reached parameters, and for those that are not trained.
  at::Tensor reached_P() const;
  /// True if forward has written a trained parameter in place, until note_write().
  bool has_written() const { return written_ && !is_noted_; }
  /// Acknowledges a write on all ranks. Returns the parameter's name; empty if another rank wrote.
  std::string note_write();
  /// Returns the names of those parameters that were not returned before.
  std::vector<std::string> new_names(const std::vector<int64_t>& params);

 private:
  const ParamTable& params_;
  std::unique_ptr<std::atomic<bool>[]> reached_;
  std::vector<int64_t> versions_;  ///< by parameter, before forward
  std::vector<bool> was_named_;
  std::optional<size_t> written_;
  bool is_noted_ = false;
  std::unique_ptr<dist::GradientHooks> hooks_;  ///< last: uses the members above
};

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
  kForNothing  ///< while a graph is captured (base/tensors/device_backend.h); weights are complete
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
