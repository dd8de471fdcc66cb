#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensors/device_backend.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "dist/reducer/gradient_reducer.h"
#include "model/model.h"
#include "train/step/module_buffers.h"
#include "train/step/training_pass.h"

/// Training passes recorded as CUDA graphs, and the decision whether to record them.
namespace lockstep::train {

/// The facts that decide whether a rank's passes may be recorded; equal on all ranks.
struct GraphQuestion {
  std::string wanted = "auto";  ///< train.cuda_graphs
  const model::Model& model;
  dist::Communicator& gradients;
  bool repeats_itself = false;   ///< network and loss are declared to repeat the same work
  bool steps_alone = false;      ///< sync.sync_replicas: false
  bool sums_batch_norm = false;  ///< train.batch_norm: sync
  bool keeps_tensors = false;    ///< a callback or hook reads the tensors of the network
  bool memory_at_start = false;  ///< the GPU's memory is reserved at the start (section gpu)
};

/// Creates the graph that records training passes on a GPU (RecordedPass). Null if recording is off
/// or impossible; with `on`, rank 0 then warns with the reason. Null on CPUs.
std::shared_ptr<DeviceGraph> choose_graph(const GraphQuestion& question);

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
  static constexpr int64_t kMost = 12;  ///< cap of the count: after this many others, another shape
                                        ///< becomes usual

  struct Parts {
    TrainingPass& pass;
    model::Model& model;
    dist::GradientReducer& reducer;
    BatchStatistics& statistics;
    at::Device device;   ///< of the weights
    bool tells = false;  ///< log events on this rank
  };
  RecordedPass(const Parts& parts, std::shared_ptr<DeviceGraph> graph)
      : parts_(parts), graph_(std::move(graph)) {}

  /// Runs the pass over these samples, the update's last, from the graph, and captures it first if
  /// that is due. Calls prepare_for_backward(). Returns nullopt, without effect, if the pass cannot
  /// use a graph.
  std::optional<LossSum> run(const data::Samples& samples, double weight,
                             const dist::StepRequests& requests);

  /// Discards the graph: parameters have moved, or the trained set has changed.
  void forget();

 private:
  /// Properties that the graph depends on, besides parameters.
  struct Shape {
    std::vector<int64_t> inputs, targets;
    at::ScalarType inputs_type = at::kFloat, targets_type = at::kLong;
    bool batch_norm_frozen = false;
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
  std::optional<LossSum> replay(const data::Samples& samples, double weight,
                                const dist::StepRequests& requests);

  Parts parts_;
  std::shared_ptr<DeviceGraph> graph_;  // null: the device refused
  std::unique_ptr<Recorded> recorded_;
  Shape usual_;           // shape of most passes
  int64_t num_more_ = 0;  // passes of this shape minus others, at most kMost
};

}  // namespace lockstep::train
