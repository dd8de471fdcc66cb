#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/device_backend.h"
#include "dist/reducer/overlap.h"
#include "metrics/samples.h"
#include "train/loss/loss.h"
#include "train/step/buffers.h"
#include "train/step/step_part.h"

/// Forward, loss and backward of a rank's samples, with autocast and observation of the network.
namespace lockstep::train {

/// Seconds since the last lap, by the steady clock.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(last_, now);
    return passed.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Tensors of one iteration on this rank: B samples, B >= 0, without gradients. Outputs computed in
/// parts are concatenated on request.
class StepTensors {
 public:
  /// num_outputs: per sample; the shape of empty outputs until there were any.
  explicit StepTensors(int64_t num_outputs = 0) : num_outputs_(num_outputs) {}

  /// Begins an iteration with its batch.
  void begin(const at::Tensor& inputs_BX, const at::Tensor& targets_BY);
  /// Adds the outputs of the batch's next samples; undefined if the network computes its own loss.
  void add_outputs(const at::Tensor& outputs_BO);

  const at::Tensor& inputs_BX() const { return inputs_BX_; }
  const at::Tensor& targets_BY() const { return targets_BY_; }
  /// Returns float32 outputs; undefined if the network computes its own loss and has samples.
  at::Tensor outputs_BO() const;

 private:
  int64_t num_outputs_;
  at::Tensor inputs_BX_, targets_BY_;
  std::vector<at::Tensor> outputs_;
  at::Tensor last_outputs_;  // of the last part, for its shape
};

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
/// reaches, and whether forward writes one. Other networks are not observed. Call it while no
/// forward or backward pass runs.
class ParamsWatch final : public StepPart {
 public:
  /// The model must outlive this.
  explicit ParamsWatch(const model::Model& model);
  ParamsWatch(const ParamsWatch&) = delete;
  ParamsWatch& operator=(const ParamsWatch&) = delete;

  bool is_on() const { return !params_.empty(); }
  /// Adapts to a new set of parameters that require a gradient.
  void on_recipe_change(const recal::AppliedActions& due) override;
  /// Marks all parameters as not reached.
  void begin_step() override;
  void end_step(StepEnd, int64_t) override {}
  /// Marks every parameter as reached, for a step without samples, whose gradients are zeros.
  void take_all_as_reached();
  void before_forward();
  void after_forward();

  /// Counts for the step's reduction: trained parameters that no backward pass of this step has
  /// reached; 1 if forward has written a trained parameter, until note_write(). Empty if off.
  std::vector<double> counts() const;
  /// Flags by parameter, int64 [P]: 1 for reached parameters, and for those that are not trained.
  at::Tensor reached_P() const;
  /// Acknowledges a write on all ranks. Returns the parameter's name; empty if another rank wrote.
  std::string note_write();
  /// Returns the names of those parameters that were not returned before.
  std::vector<std::string> new_names(const std::vector<int64_t>& params);

 private:
  void set_hooks();

  const ParamTable& params_;  ///< empty for other networks
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
  double on_host = 0;
  at::Tensor on_device = {};
};

/// Inputs of one forward and backward pass, besides its samples.
struct PassRequest {
  double weight = 1;  ///< factor on each loss before backward
  /// Set if the samples are the last ones of the update.
  std::optional<dist::StepRequests> completes = std::nullopt;
  metrics::PhaseSeconds* phases;
};

/// Samples of a rank on the device of the weights, and the factor on each loss before backward
/// (float32 []). `first_sample`: index of the first in the global batch.
struct PassInputs {
  data::Samples samples;
  at::Tensor host_targets_BY = {};  ///< as the loader gave them; only the network's own loss needs
                                    ///< them
  int64_t first_sample = 0;
  at::Tensor weight;
};

/// Waits that the host may make within a pass.
enum class HostWaits {
  kForLosses,  ///< for the device too, to read each loss
  kForPeers,   ///< for weights that are still in transit from other ranks
  kForNothing  ///< while a graph is captured (base/tensors/device_backend.h); weights are complete
};

/// A CUDA graph of a rank's forward and backward pass (train.cuda_graphs), captured here. The host
/// launches it by one call instead of some hundred. So with short kernels a step takes only as long
/// as its kernels.
///
/// Inputs that change from step to step are copied to fixed memory: samples, targets, and the
/// weight of losses. The graph is captured once kPassesBefore more passes had one input shape than
/// other shapes. It is valid for this shape; others, such as the last batch of an epoch, run
/// normally. Some passes are not captured: those that use a number from the host (ForwardPass:
/// dropout), those with a layer hook (quantization), and those with overlapped buckets. The reason
/// for the last: a replay calls no autograd hooks.
///
/// If the device refuses, rank 0 logs the reason once, and passes run normally. Bits equal those of
/// normal passes if the device selects the same kernels.
class RecordedPass {
 public:
  static constexpr int64_t kPassesBefore = 3;
  static constexpr int64_t kMost = 12;  ///< so many others make another shape usual

  /// graph: null if passes are not recorded. The pass must outlive this.
  RecordedPass(TrainingPass& pass, std::shared_ptr<DeviceGraph> graph)
      : pass_(pass), graph_(std::move(graph)) {}

  /// False without a graph, and after the device has refused.
  bool is_on() const { return graph_ != nullptr; }
  /// Runs the pass over these samples, the update's last, from the graph, and captures it first if
  /// that is due. Calls prepare_for_backward(). Returns nullopt, without effect, if no graph fits.
  std::optional<LossSum> run(const data::Samples& samples, const PassRequest& request);

  /// Discards the graph: parameters have moved, or the trained set has changed.
  void forget();

 private:
  /// Properties that the graph depends on, besides parameters.
  struct Shape {
    std::vector<int64_t> inputs, targets;
    at::ScalarType inputs_type = at::kFloat, targets_type = at::kLong;
    bool batch_norm_frozen = false;
    int64_t num_semi_sparse_changes = 0;
    bool operator==(const Shape&) const = default;
  };
  struct Recorded {
    Shape shape;
    PassInputs inputs;
    LossSum loss;
    model::SeenStatistics seen;
  };

  bool is_recordable() const;
  void count(const Shape& shape);
  Shape shape_of(const data::Samples& samples) const;
  void copy_in(const data::Samples& samples, double weight);
  bool record(const data::Samples& samples, double weight, const Shape& shape);
  LossSum replay(const data::Samples& samples, const PassRequest& request);

  TrainingPass& pass_;
  std::shared_ptr<DeviceGraph> graph_;
  std::unique_ptr<Recorded> recorded_;
  Shape usual_;           // shape of most passes
  int64_t num_more_ = 0;  // passes of this shape minus others, at most kMost
};

/// Forward, loss and backward of this rank's samples, by micro-batch.
class TrainingPass final : public StepPart {
 public:
  /// All references outlive the pass.
  TrainingPass(const TrainerParts& parts, const TrainOptions& options, BatchStatistics& statistics,
               ParamsWatch& watch);
  TrainingPass(const TrainingPass&) = delete;
  TrainingPass& operator=(const TrainingPass&) = delete;

  const TrainerParts& parts() const { return parts_; }
  BatchStatistics& statistics() const { return statistics_; }

  /// Computes weighted gradients of these samples in the flat buffers, and returns the sum of their
  /// losses. Replays a recorded pass if possible. first_sample: index in the global batch.
  LossSum run(const data::Samples& samples, int64_t first_sample, const PassRequest& request);
  /// Runs the pass without a recording, over samples on the device. The reducer is prepared before
  /// the backward pass of the last micro-batch, if the request completes the update. Forward may
  /// run backward passes of its own.
  LossSum compute(const PassInputs& inputs, const PassRequest& request, HostWaits waits);

  void on_recipe_change(const recal::AppliedActions& due) override;
  void end_step(StepEnd, int64_t) override {}

 private:
  /// num_counted: Loss::num_counted() of the samples, for the network's own loss.
  at::Tensor sum_of_losses(const data::Samples& samples, double num_counted, int64_t first_sample);
  /// Loss and outputs of the network for these samples.
  model::OwnLoss loss_of_task(const data::Samples& samples, double num_counted);
  void backward(const at::Tensor& loss, const at::Tensor& weight);

  const TrainerParts& parts_;
  BatchStatistics& statistics_;
  ParamsWatch& watch_;
  const std::string precision_;
  const int64_t num_micro_batches_;
  RecordedPass recorded_pass_;
};

}  // namespace lockstep::train
